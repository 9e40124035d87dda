//! The queues and connections of a path, as the kernel reports them.

#[test]
fn queues_are_those_that_the_kernel_reports() {
    let mut tree = crate::tree::Tree::new();
    tree.drive(1);
    tree.drive(2);
    let controller = |index: u32| {
        format!("sys/devices/pci0000:00/0000:{index:02x}:00.0/nvme/nvme{index}/queue_count")
    };
    // One of them is for administration.
    tree.write(&controller(1), "9\n");
    tree.write("proc/self/mountstats", "device s:/e mounted on /n with fstype nfs4\n\txprt: tcp\n");
    tree.mount(10, "259:1", "/a", "ext4 /dev/nvme1n1 rw");
    tree.mount(11, "259:2", "/b", "ext4 /dev/nvme2n1 rw");
    tree.mount(12, "0:42", "/n", "nfs4 s:/e rw,vers=4.2,nconnect=8");
    let described = |paths: &[&str]| {
        let maps: Vec<_> = paths.iter().map(|path| tree.map(path)).collect();
        forebay_cli::bench::queues::described(&maps)
    };
    assert_eq!(described(&["/a/f"]), ["8 I/O queues"]);
    // Eight connections were requested, and there is one.
    assert_eq!(described(&["/n/f", "/a/f", "/a/f"]), ["1 connection", "8 I/O queues"]);
    assert_eq!(described(&["/b/f"]), Vec::<String>::new());
    tree.write(&controller(2), "0\n");
    assert_eq!(described(&["/b/f"]), Vec::<String>::new());
}
