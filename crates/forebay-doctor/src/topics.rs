//! The subjects of the checks, and why they matter.

use super::report::Topic;

macro_rules! topics {
    ($($topic:ident = $name:literal: $why:literal;)*) => {
        $(pub(super) const $topic: Topic = Topic { name: $name, why: $why };)*

        #[cfg(test)]
        pub(super) const ALL: &[Topic] = &[$($topic),*];
    };
}

topics! {
    PATH_ANSWERS = "path_answers":
        "a process that opens a file there waits for a reply, and may not be killed before";
    FILE_SYSTEM = "file_system":
        "cuFile moves bytes directly on few file systems; on all others it copies them";
    MOUNT_OPTIONS = "mount_options":
        "on ext4 cuFile takes files only where the table of mounts says `data=ordered`";
    FILE_ATTRIBUTES = "file_attributes":
        "bytes that are encrypted, compressed or checked have to pass the processor";
    UDEV = "udev":
        "cuFile needs udev to identify the file system; without it every file fails with 5027, \
         also in compat mode";
    UDEV_RAID = "udev_raid":
        "cuFile needs udev to identify the level of an array; without it every file fails";
    DRIVE = "drive":
        "only the drivers of NVMe drives move bytes straight to another PCI device";
    RAID = "raid":
        "an array passes requests on directly only where its level computes nothing";
    VOLUME = "volume":
        "volumes of the device mapper do not pass on requests for a GPU's memory";
    MULTIPATH = "multipath":
        "the head of a drive with several paths passes on requests for a GPU's memory in the \
         newest kernels only";
    MULTIPATH_POLICY = "multipath_policy":
        "the policy says which of a drive's paths a request takes: `numa` keeps each node to one \
         of them";
    PROTECTION_INFORMATION = "protection_information":
        "sums that go with each block are made and checked in host memory";
    NVME_OVER_FABRICS = "nvme_over_fabrics":
        "a drive behind a network needs RDMA, by a driver that can reach a GPU's memory";
    DPU = "dpu":
        "the bytes of a drive that a card emulates come from the card, so its place on PCI counts";
    NFS_TRANSPORT = "nfs_transport":
        "over TCP each byte is copied by the processor; over RDMA the network card may write to \
         the GPU itself";
    RDMA_DEVICES = "rdma_devices":
        "a direct path over a network takes a card that speaks RDMA, with a port that is up";
    PEERMEM = "peermem":
        "`nvidia_peermem` (or DMA-BUF in newer drivers) lets a network card reach a GPU's memory";
    GPU_DRIVER = "gpu_driver":
        "P2PDMA takes NVIDIA's open kernel module, 565 or later";
    GPU_CLASS = "gpu_class":
        "the driver gives other PCI devices the memory of some kinds of GPUs only";
    GPU_DRIVER_KEYS = "gpu_driver_keys":
        "on x86 the driver maps all GPU memory for other devices only with this option";
    GPU_P2P_MEMORY = "gpu_p2p_memory":
        "P2PDMA reaches the memory that the GPU's driver has given to the kernel, and no other";
    NVIDIA_FS_LOADED = "nvidia_fs":
        "nvidia-fs is the other way: it lends the GPU's memory to drivers that know it";
    NVIDIA_FS_MODULES = "nvidia_fs_modules":
        "nvidia-fs serves only drivers that have registered with it";
    GPU_DEVICES = "gpu_devices":
        "a process reaches a GPU by these devices, if its user and its control group may";
    KERNEL_P2PDMA = "kernel_p2pdma":
        "without it the kernel moves no bytes between two PCI devices; only nvidia-fs remains";
    KERNEL_VERSION = "kernel_version":
        "some kernels are known to break a direct path, or to slow it down";
    BAR1 = "bar1":
        "other PCI devices reach the GPU's memory through this range, and no more at once";
    IOMMU = "iommu":
        "a translating IOMMU routes transfers between two devices through the processor, or \
         refuses them";
    ACS = "acs":
        "bridges with redirection route transfers between devices below them through the processor";
    LINK = "link":
        "a link with fewer lanes or at a lower speed than both its ends can bounds every transfer";
    DISTANCE = "distance":
        "bytes between two devices below one switch do not pass the processor";
    NVIDIA_FS_PEERS = "nvidia_fs_peers":
        "nvidia-fs lends a GPU's memory to the nearest device; past a root port every byte \
         crosses the processor";
    CUFILE_JSON = "cufile_json":
        "cuFile takes its settings from this file, and its defaults without one";
    CUFILE_P2PDMA = "cufile_p2pdma":
        "cuFile uses P2PDMA only where both its global key and that of the kind of storage say so";
    CUFILE_DENYLIST = "cufile_denylist":
        "files on these lists are copied through host memory, whatever else is right";
    CUFILE_COMPAT = "cufile_compat":
        "in its compat mode cuFile copies through host memory without a message";
    CUFILE_ENVIRONMENT = "cufile_environment":
        "variables go before the file, in this process and those that it starts";
    CUFILE_LIBRARY = "cufile_library":
        "cuFile is the library that moves bytes directly";
    CUFILE_STORAGE = "cufile_storage":
        "what cuFile's driver says that it serves is the nearest to proof before bytes move";
    LOCKED_MEMORY = "locked_memory":
        "what the kernel or a network card is to reach has to be locked in memory";
    MEMORY_LIMIT = "memory_limit":
        "pinned memory counts against the limit of the control group, and is never given back";
    RIGHTS = "rights":
        "registers of bridges and tables of volumes are shown to root only";
    CONTAINER = "container":
        "a container shows only the devices and folders that it was given";
    PROC_MODULES = "proc_modules":
        "cuFile from 1.16 on was seen to spin endlessly while its driver opens if this is missing";
}
