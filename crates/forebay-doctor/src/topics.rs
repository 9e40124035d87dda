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
        "cuFile moves bytes directly on few file systems; on the rest it copies them";
    MOUNT_OPTIONS = "mount_options":
        "on ext4 cuFile accepts files only if the mount table shows `data=ordered`";
    FILE_ATTRIBUTES = "file_attributes":
        "encrypted, compressed or checksummed data passes through the CPU";
    UDEV = "udev":
        "cuFile identifies the file system by udev; without it every file fails with 5027, also in \
         compat mode";
    UDEV_RAID = "udev_raid":
        "cuFile reads an array's RAID level from udev; without it every file fails";
    DRIVE = "drive": "only NVMe drivers transfer data directly to a peer PCI device";
    RAID = "raid": "an array passes requests on directly only if its level computes nothing";
    VOLUME = "volume": "device-mapper volumes do not pass on requests for GPU memory";
    MULTIPATH = "multipath":
        "only the newest kernels pass requests for GPU memory through a multipath head";
    MULTIPATH_POLICY = "multipath_policy":
        "the policy selects the path of a request: with `numa` every node uses a single path";
    PROTECTION_INFORMATION = "protection_information":
        "block checksums are computed and verified in host memory";
    NVME_OVER_FABRICS = "nvme_over_fabrics":
        "a remote drive needs RDMA, and a driver that can access GPU memory";
    DPU = "dpu":
        "a DPU transfers the bytes of a drive that it emulates, so its place on PCI counts";
    NFS_TRANSPORT = "nfs_transport":
        "over TCP the CPU copies every byte; with RDMA the network card may write to the GPU \
         directly";
    RDMA_DEVICES = "rdma_devices":
        "a direct path over a network requires an RDMA card with an active port";
    PEERMEM = "peermem":
        "`nvidia_peermem` (or DMA-BUF in newer drivers) gives a network card access to GPU memory";
    GPU_DRIVER = "gpu_driver": "P2PDMA requires NVIDIA's open kernel module, 565 or later";
    GPU_CLASS = "gpu_class":
        "the driver exposes the memory of some GPU models only to peer PCI devices";
    GPU_DRIVER_KEYS = "gpu_driver_keys":
        "on x86 the driver maps all GPU memory for peer devices only with this option";
    GPU_P2P_MEMORY = "gpu_p2p_memory":
        "P2PDMA can access only GPU memory that the driver registers with the kernel";
    NVIDIA_FS_LOADED = "nvidia_fs":
        "nvidia-fs is the alternative to P2PDMA: it exposes GPU memory to drivers that support it";
    NVIDIA_FS_MODULES = "nvidia_fs_modules": "only drivers registered with nvidia-fs can use it";
    GPU_DEVICES = "gpu_devices":
        "CUDA opens these devices, if the user and the control group permit it";
    KERNEL_P2PDMA = "kernel_p2pdma":
        "without it the kernel cannot transfer between two PCI devices; only nvidia-fs remains";
    KERNEL_VERSION = "kernel_version": "some kernels are known to break or slow down a direct path";
    BAR1 = "bar1":
        "peer PCI devices access GPU memory through this range, whose size limits the mapped \
         memory";
    IOMMU = "iommu":
        "a translating IOMMU routes peer-to-peer transfers through the CPU, or rejects them";
    ACS = "acs": "bridges that redirect requests route peer-to-peer transfers through the CPU";
    LINK = "link": "a link below the maximum of both ends limits every transfer";
    DISTANCE = "distance": "transfers between two devices below the same switch bypass the CPU";
    NVIDIA_FS_PEERS = "nvidia_fs_peers":
        "nvidia-fs pairs a GPU with the nearest device; past a root port every byte crosses the \
         CPU";
    CUFILE_JSON = "cufile_json":
        "cuFile reads its settings from this file; without it the defaults apply";
    CUFILE_P2PDMA = "cufile_p2pdma":
        "cuFile uses P2PDMA only if its global key and that of the kind of storage are both true";
    CUFILE_DENYLIST = "cufile_denylist":
        "files on these lists are copied through host memory, whatever else is right";
    CUFILE_COMPAT = "cufile_compat":
        "in compat mode cuFile copies through host memory without a message";
    CUFILE_ENVIRONMENT = "cufile_environment":
        "environment variables override the file, in this process and its children";
    CUFILE_LIBRARY = "cufile_library":
        "cuFile is the library that moves bytes directly";
    CUFILE_STORAGE = "cufile_storage":
        "the list of storage that cuFile's driver supports is the best evidence before a transfer";
    LOCKED_MEMORY = "locked_memory":
        "memory that the kernel or a network card accesses must be locked";
    MEMORY_LIMIT = "memory_limit":
        "pinned memory counts against the control group's limit, and cannot be reclaimed";
    RIGHTS = "rights": "only root can read bridge registers and volume tables";
    CONTAINER = "container": "a container shows only the devices and folders passed to it";
    PROC_MODULES = "proc_modules":
        "if it is missing, cuFile 1.16 and later spin endlessly while the driver opens";
}
