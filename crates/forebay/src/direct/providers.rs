//! The direct-route providers of an engine: cuFile, real and simulated.

use std::sync::Arc;

use forebay_base::lock::Lock;
use forebay_cufile::{Driver, Program, Session};

use super::port::CuFilePort;
use crate::events;
use crate::file::{FoundPort, Handle, Port};
use crate::gpu::{Device, DeviceKind};

/// The providers and their state.
#[derive(Debug)]
pub(crate) struct Providers {
    driver: Driver,
    simulated: Lock<Option<Arc<Session>>>,
}

impl Providers {
    pub(crate) fn new() -> Self {
        Self { driver: Driver::of_process(events::note), simulated: Lock::default() }
    }

    /// Whether a GPU may have a direct path, as far as is known without a probe.
    pub(crate) fn may_serve(&self, device: &dyn Device) -> bool {
        match device.id().kind {
            DeviceKind::Sim => device.simulated_cufile().is_some(),
            DeviceKind::Cuda => self.driver.may_be_there(),
        }
    }

    /// The port of a file to a GPU, or why there is none. With `waits` the driver is probed, and
    /// the call waits for the result or the timeout.
    pub(crate) fn port(
        &self,
        file: &Handle,
        device: &Arc<dyn Device>,
        program: Option<&Program>,
        waits: bool,
    ) -> FoundPort {
        let session = match device.id().kind {
            DeviceKind::Sim => self.simulated(&**device)?,
            DeviceKind::Cuda => self.driver.session(program, waits)?,
        };
        file.ports().to(device.id(), || {
            let port = CuFilePort::open(&session, file, device);
            if let Err(no) = &port {
                let (path, gpu, why) = (file.path().display(), device.id(), &no.why);
                events::note(&format!("`{path}` has no direct path to {gpu} by cuFile: {why}"));
            }
            port.map(|port| Arc::new(port) as Arc<dyn Port>)
        })
    }

    /// The driver, if it is in use.
    pub(crate) fn in_use(&self) -> Option<Arc<Session>> {
        self.driver.in_use().or_else(|| self.simulated.lock().clone())
    }

    /// The simulated driver of a simulated GPU.
    fn simulated(&self, device: &dyn Device) -> Result<Arc<Session>, String> {
        if device.simulated_cufile().is_none() {
            return Err("the simulated GPU lacks cuFile; use `--gpu sim:cufile`".into());
        }
        let mut simulated = self.simulated.lock();
        if let Some(session) = &*simulated {
            return Ok(Arc::clone(session));
        }
        let session = Session::simulated().map_err(|failure| failure.in_words())?;
        Ok(Arc::clone(simulated.insert(session)))
    }
}
