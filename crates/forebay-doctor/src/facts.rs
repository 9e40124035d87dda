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
    /// The GPU, or why there is none.
    pub(super) gpu: Result<Gpu, String>,
    /// The GPU that the user named, or no GPU.
    pub(super) gpu_wish: GpuWish,
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
        let found = gpu(system, &wish.gpu);
        let gpu = found.as_ref().ok();
        Self {
            kernel: Kernel::read(system),
            driver: Driver::read(system, gpu.map(|gpu| gpu.pci.address.as_str())),
            pcie: Pcie::read(system, gpu, &map),
            storage: Storage::read(system, map),
            network: Network::read(system),
            process: Process::read(system),
            devices: Devices::read(system),
            config: Config::read(system),
            gpu_wish: wish.gpu.clone(),
            gpu: found,
            cufile,
        }
    }

    /// The version of cuFile, if it is known.
    pub(super) fn library_version(&self) -> Option<(u32, u32)> {
        cufile::version(&self.cufile.as_ref()?.0)
    }

    /// Whether cuFile's driver opened.
    pub(super) fn cufile_opened(&self) -> bool {
        self.cufile.as_ref().is_some_and(|(seen, _)| seen.opened)
    }

    /// Whether a direct path is set up, so that its absence should be reported.
    pub(super) fn cufile_is_wanted(&self) -> bool {
        self.cufile_opened() && (self.config.wants_p2pdma() || self.driver.nvidia_fs.is_some())
    }

    pub(super) fn shown_gpu(&self) -> Option<Shown> {
        let gpu = self.gpu.as_ref().ok()?;
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
            let gpus = forebay_topology::gpus(system);
            let none = || format!("there is no GPU {index}: /sys shows {}", gpus.len());
            gpus.get(*index).cloned().ok_or_else(none)
        }
        GpuWish::At(address) => forebay_topology::gpu_at(system, address)
            .ok_or_else(|| format!("/sys/bus/pci/devices has no `{address}`")),
        GpuWish::None(reason) => Err(reason.clone()),
    }
}
