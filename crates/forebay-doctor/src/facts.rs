//! The facts about a machine, a path and a GPU, read once; the checks use nothing else.

use forebay_topology::{Gpu, Resolver, System};

use super::config::Config;
use super::cufile;
use super::devices::Devices;
use super::driver::Driver;
use super::kernel::Kernel;
use super::network::Network;
use super::pcie::Pcie;
use super::process::Process;
use super::report::{Check, Gpu as Shown};
use super::storage::Storage;
use super::{Answer, GpuWish, Wish};

/// All facts for the checks.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) kernel: Kernel,
    pub(super) driver: Driver,
    pub(super) gpu: Option<Gpu>,
    /// Why there is no GPU.
    pub(super) no_gpu: String,
    /// Whether the user named a GPU.
    pub(super) gpu_is_wanted: bool,
    /// Whether no driver is bound to the GPU.
    pub(super) gpu_is_free: bool,
    pub(super) pcie: Pcie,
    pub(super) storage: Storage,
    pub(super) network: Network,
    pub(super) process: Process,
    devices: Devices,
    pub(super) config: Config,
    cufile: Option<Answer>,
}

impl Facts {
    pub(super) fn read(system: &System, wish: &Wish, cufile: Option<Answer>) -> Self {
        // If the path does not answer, this marks it as unresponsive, so that later reads skip it.
        let _ = system.reach(&wish.path);
        let map = Resolver::new(system.clone()).resolve(&wish.path);
        let (gpu, no_gpu) = match gpu(system, &wish.gpu) {
            Ok(gpu) => (Some(gpu), String::new()),
            Err(reason) => (None, reason),
        };
        Self {
            kernel: Kernel::read(system),
            driver: Driver::read(system, gpu.as_ref().map(|gpu| gpu.pci.address.as_str())),
            pcie: Pcie::read(system, gpu.as_ref(), &map),
            storage: Storage::read(system, map),
            network: Network::read(system),
            process: Process::read(system),
            devices: Devices::read(system),
            config: Config::read(system),
            gpu_is_wanted: matches!(wish.gpu, GpuWish::At(_)),
            gpu_is_free: gpu.as_ref().is_some_and(|gpu| gpu.pci.driver.is_none()),
            gpu,
            no_gpu,
            cufile,
        }
    }

    /// The version of cuFile, if it is known.
    pub(super) fn library_version(&self) -> Option<(u32, u32)> {
        cufile::version(&self.cufile.as_ref()?.0)
    }

    /// Whether cuFile's driver has opened.
    pub(super) fn cufile_opened(&self) -> bool {
        self.cufile.as_ref().is_some_and(|(seen, _)| seen.opened)
    }

    /// Whether a direct path has been set up, so that its absence should be reported.
    pub(super) fn cufile_is_wanted(&self) -> bool {
        self.cufile_opened() && (self.config.wants_p2pdma() || self.driver.nvidia_fs.is_some())
    }

    pub(super) fn shown_gpu(&self) -> Option<Shown> {
        let gpu = self.gpu.as_ref()?;
        Some(Shown { address: gpu.pci.address.clone(), name: self.driver.model.clone() })
    }

    /// All checks, those first that are hardest to change.
    pub(super) fn checks(&self) -> Vec<Check> {
        let mut checks = self.storage.checks(self);
        checks.extend(self.network.checks(self));
        checks.extend(self.driver.checks(self));
        checks.extend(self.devices.check(self));
        checks.extend(self.kernel.checks(self));
        checks.extend(self.pcie.checks(self));
        checks.extend(self.config.checks(self));
        checks.extend(cufile::checks(self.cufile.as_ref(), self));
        checks.extend(self.process.checks(self));
        checks
    }
}

fn gpu(system: &System, wish: &GpuWish) -> Result<Gpu, String> {
    match wish {
        GpuWish::First => {
            let first = forebay_topology::gpus(system).into_iter().next();
            first.ok_or_else(|| "/sys/bus/pci/devices shows no NVIDIA GPU".to_owned())
        }
        GpuWish::Index(index) => {
            let mut gpus = forebay_topology::gpus(system);
            let count = gpus.len();
            match *index < count {
                true => Ok(gpus.swap_remove(*index)),
                false => Err(format!("there is no GPU {index}: /sys shows {count}")),
            }
        }
        GpuWish::At(address) => forebay_topology::gpu_at(system, address)
            .ok_or_else(|| format!("/sys/bus/pci/devices has no `{address}`")),
        GpuWish::None(reason) => Err(reason.clone()),
    }
}
