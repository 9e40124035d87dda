//! The first file system of a Linux kernel: a `cpio` archive in the `newc` format
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive in the making.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

impl Archive {
    /// Adds an empty folder; its parents must come first.
    pub(crate) fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[]);
    }

    /// Adds a file that may be run.
    pub(crate) fn file(&mut self, name: &str, bytes: &[u8]) {
        self.entry(name, FILE, bytes);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, bytes: &[u8]) {
        self.count += 1;
        let len = u32::try_from(bytes.len()).expect("no file of the lab's kernel has 4 GiB");
        let name_len = u32::try_from(name.len() + 1).expect("a name is short");
        // Number, mode, owner, group, links, time, length, the two numbers of the containing
        // device, two of a device node, the length of the name with its zero, and no checksum.
        let fields = [self.count, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(bytes);
        self.align();
    }

    fn align(&mut self) {
        let len = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(len, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_the_trailer() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/x", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let starts: Vec<usize> =
            (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b"070701")).collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|start| start % 4 == 0));
        // The second header announces five bytes, which follow it and its name.
        assert_eq!(&bytes[starts[1] + 54..starts[1] + 62], b"00000005");
        assert_eq!(&bytes[starts[1] + 110..starts[1] + 116], b"bin/x\0");
        assert_eq!(&bytes[starts[1] + 116..starts[1] + 124], b"12345\0\0\0");
    }
}
