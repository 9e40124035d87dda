//! What the file system answers: the kernel's protocol (`linux/fuse.h`, version 7.31) as far as one
//! flat file needs it, and how that file misbehaves.

use std::time::Duration;

const ROOT: u64 = 1;
const FILE: u64 = 2;
/// The name of the file.
pub(crate) const NAME: &str = "file";

/// The request for bytes of the file.
const READ: u32 = 15;
/// The request that another one need not be answered any more.
const INTERRUPT: u32 = 36;

/// Bytes of one request at most, without its header.
pub(super) const REQUEST_MAX: u32 = 1 << 20;

/// How the file misbehaves. Offsets are of the file.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Nothing is answered until this is taken back: no name, no size, no question of any kind.
    pub(crate) silent: bool,
    /// Opening a file waits until this is false again; its attributes are answered.
    pub(crate) hang_opens: bool,
    /// Reads that touch a byte from here on wait until this is taken back.
    pub(crate) hang_from: Option<u64>,
    /// Number of reads to answer in spite of `hang_from`.
    pub(crate) answers: usize,
    /// Each read takes so long, one after the other.
    pub(crate) pause: Duration,
    /// Writes wait until this is taken back.
    pub(crate) hang_writes: bool,
    /// Reads that touch this byte fail with EIO.
    pub(crate) fail_at: Option<u64>,
    /// With this instead of EIO.
    pub(crate) fail_errno: Option<i32>,
    /// Writes that touch this byte fail with this error.
    pub(crate) fail_writes_at: Option<(u64, i32)>,
    /// Reads return at most so many bytes.
    pub(crate) read_most: Option<usize>,
    /// Writes take at most so many bytes.
    pub(crate) write_most: Option<usize>,
    /// No page cache: every read is the server's, and a short one is no end of the file to the
    /// kernel. Counts when the file is opened.
    pub(crate) uncached: bool,
    /// The server wants to know when a file is closed. Counts when the file is opened.
    pub(crate) closes: bool,
    /// Closing waits until this is taken back, where the server wants to know.
    pub(crate) hang_closes: bool,
    /// Closing fails with this error, where the server wants to know.
    pub(crate) fail_closes: Option<i32>,
    /// To make the file durable fails with this error.
    pub(crate) fail_syncs: Option<i32>,
    /// The same, of descriptors that were opened with O_DIRECT.
    pub(crate) fail_direct_closes: Option<i32>,
    /// O_DIRECT is refused when the file is opened.
    pub(crate) no_direct: bool,
    /// O_DIRECT is refused when the file is read.
    pub(crate) no_direct_reads: bool,
    /// What the file says its size is.
    pub(crate) size: Option<u64>,
    /// A thread of the kernel waits for each answer, and its wish to wait no longer is granted.
    /// Counts when the file system is mounted.
    pub(crate) interruptible: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) bytes: Vec<u8>,
    pub(super) faults: Faults,
    /// Requests that wait.
    pub(super) parked: Vec<Request>,
    /// The numbers of requests that the kernel has given up.
    pub(super) interrupted: Vec<u64>,
    /// The offsets of the reads that were answered, in that order.
    pub(super) reads: Vec<u64>,
    pub(super) stopping: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    code: u32,
    pub(super) unique: u64,
    node: u64,
    body: Vec<u8>,
}

pub(super) enum Reply {
    None,
    Error(i32),
    Body(Vec<u8>),
}

impl Request {
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut request = Self { code: 0, unique: 0, node: 0, body: bytes.to_vec() };
        request.code = request.u32_at(4);
        request.unique = request.u64_at(8);
        request.node = request.u64_at(16);
        request.body.drain(..40);
        request
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.body.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes(b.try_into().expect("four")))
    }

    fn u64_at(&self, at: usize) -> u64 {
        self.body.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight")))
    }

    /// Offset and length of a read or a write.
    fn range(&self) -> (u64, usize) {
        (self.u64_at(8), self.u32_at(16) as usize)
    }
}

impl State {
    /// The answer to a request that was taken back while it waited.
    pub(super) fn interrupt(&mut self, request: &Request) -> Option<Reply> {
        if request.code == INTERRUPT && self.faults.interruptible {
            self.interrupted.push(request.u64_at(0));
        }
        let before = self.interrupted.len();
        self.interrupted.retain(|unique| *unique != request.unique);
        (self.interrupted.len() < before).then_some(Reply::Error(libc::EINTR))
    }

    /// How long the drive takes for a request.
    pub(super) fn pause(&self, request: &Request) -> Duration {
        if request.code == READ { self.faults.pause } else { Duration::ZERO }
    }

    /// `None`: the request waits.
    pub(super) fn reply(&mut self, request: &Request) -> Option<Reply> {
        let opened = || {
            // Else to close a file would wait for a write that hangs.
            const NO_FLUSH: u32 = 1 << 5;
            let closes = if self.faults.closes { 0 } else { NO_FLUSH };
            let flags = u32::from(self.faults.uncached) | closes;
            let handle = u64::from(is_direct(request.u32_at(0)));
            Reply::Body([&handle.to_ne_bytes()[..], &flags.to_ne_bytes(), &[0; 4]].concat())
        };
        let needs_no_answer = [2, 26, INTERRUPT, 42].contains(&request.code);
        if self.faults.silent && !needs_no_answer {
            return None;
        }
        Some(match request.code {
            1 if request.body.strip_suffix(b"\0") == Some(NAME.as_bytes()) => {
                Reply::Body(self.entry())
            }
            1 => Reply::Error(libc::ENOENT),
            2 | INTERRUPT | 42 => Reply::None,
            3 => Reply::Body(self.attributes(request.node)),
            4 => self.change(request),
            14 if self.faults.hang_opens => return None,
            14 if self.faults.no_direct && is_direct(request.u32_at(0)) => {
                Reply::Error(libc::EINVAL)
            }
            14 => opened(),
            27 => Reply::Body(vec![0; 16]),
            READ => return self.read(request),
            16 => return self.write(request),
            17 => Reply::Body(vec![0; 80]),
            20 if self.faults.fail_syncs.is_some() => {
                Reply::Error(self.faults.fail_syncs.unwrap_or_default())
            }
            18 | 20 | 29 | 30 | 34 | 38 => Reply::Body(Vec::new()),
            26 => Reply::Body(greeting(self.faults.interruptible)),
            28 => Reply::Body(Vec::new()),
            25 if self.faults.hang_closes => return None,
            25 if self.faults.closes && self.faults.fail_closes.is_some() => {
                Reply::Error(self.faults.fail_closes.unwrap_or_default())
            }
            25 if self.faults.fail_direct_closes.is_some() && request.u64_at(0) == 1 => {
                Reply::Error(self.faults.fail_direct_closes.unwrap_or_default())
            }
            25 if self.faults.closes => Reply::Body(Vec::new()),
            _ => Reply::Error(libc::ENOSYS),
        })
    }

    fn read(&mut self, request: &Request) -> Option<Reply> {
        let (offset, len) = request.range();
        let end = offset + len as u64;
        if self.faults.hang_from.is_some_and(|from| end > from) {
            self.faults.answers = self.faults.answers.checked_sub(1)?;
        }
        if self.faults.no_direct_reads && is_direct(request.u32_at(32)) {
            return Some(Reply::Error(libc::EINVAL));
        }
        self.reads.push(offset);
        if self.faults.fail_at.is_some_and(|at| (offset..end).contains(&at)) {
            return Some(Reply::Error(self.faults.fail_errno.unwrap_or(libc::EIO)));
        }
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let len = len.min(self.bytes.len() - start).min(self.faults.read_most.unwrap_or(len));
        Some(Reply::Body(self.bytes[start..start + len].to_vec()))
    }

    fn write(&mut self, request: &Request) -> Option<Reply> {
        if self.faults.hang_writes {
            return None;
        }
        let (offset, len) = request.range();
        if let Some((at, errno)) = self.faults.fail_writes_at
            && (offset..offset + len as u64).contains(&at)
        {
            return Some(Reply::Error(errno));
        }
        let len = len.min(self.faults.write_most.unwrap_or(len));
        let start = usize::try_from(offset).expect("a small file");
        let end = start + len;
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[start..end].copy_from_slice(&request.body[40..40 + len]);
        let mut reply = u32::try_from(len).expect("one request").to_ne_bytes().to_vec();
        reply.extend_from_slice(&[0; 4]);
        Some(Reply::Body(reply))
    }

    /// A new size is the only change that is made; the others are forgotten.
    fn change(&mut self, request: &Request) -> Reply {
        const SIZE: u32 = 1 << 3;
        if request.u32_at(0) & SIZE != 0 {
            let size = usize::try_from(request.u64_at(16)).expect("a small file");
            self.bytes.resize(size, 0);
        }
        Reply::Body(self.attributes(request.node))
    }

    fn entry(&self) -> Vec<u8> {
        let mut entry = Vec::with_capacity(128);
        entry.extend_from_slice(&FILE.to_ne_bytes());
        // No generation, and nothing stays valid: the kernel queries it each time.
        entry.resize(40, 0);
        entry.extend_from_slice(&self.node(FILE));
        entry
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let mut reply = vec![0; 16];
        reply.extend_from_slice(&self.node(node));
        reply
    }

    /// The kernel's `fuse_attr`.
    fn node(&self, node: u64) -> Vec<u8> {
        let (mode, size) = match node {
            ROOT => (libc::S_IFDIR | 0o755, 0),
            _ => (libc::S_IFREG | 0o644, self.faults.size.unwrap_or(self.bytes.len() as u64)),
        };
        let mut attributes = Vec::with_capacity(88);
        for field in [node, size, size.div_ceil(512), 0, 0, 0] {
            attributes.extend_from_slice(&field.to_ne_bytes());
        }
        for field in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
            attributes.extend_from_slice(&u32::to_ne_bytes(field));
        }
        attributes
    }
}

fn is_direct(flags: u32) -> bool {
    flags & libc::O_DIRECT.cast_unsigned() != 0
}

/// The answer to the kernel's first request: the version, and large requests in parallel.
fn greeting(waits: bool) -> Vec<u8> {
    const ASYNC_READ: u32 = 1;
    const BIG_WRITES: u32 = 1 << 5;
    const ASYNC_DIRECT: u32 = 1 << 15;
    const MAX_PAGES: u32 = 1 << 22;
    let mut reply = Vec::with_capacity(64);
    let flags = ASYNC_READ | BIG_WRITES | MAX_PAGES | if waits { 0 } else { ASYNC_DIRECT };
    for field in [7, 31, REQUEST_MAX, flags] {
        reply.extend_from_slice(&u32::to_ne_bytes(field));
    }
    // Requests in the background, and from how many on the kernel takes it for congested.
    for field in [256_u16, 192] {
        reply.extend_from_slice(&field.to_ne_bytes());
    }
    for field in [REQUEST_MAX, 1] {
        reply.extend_from_slice(&u32::to_ne_bytes(field));
    }
    let pages = u16::try_from(REQUEST_MAX / 4096).expect("256");
    reply.extend_from_slice(&pages.to_ne_bytes());
    reply.resize(64, 0);
    reply
}
