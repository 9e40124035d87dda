//! Ranks meet at rank 0 over TCP, and agree: rank 0 makes one answer of the values of all.
//!
//! Each message is a line of JSON. A rank sends one at least every [`BEAT`] from the moment it
//! connects. A rank that ends early, or is silent for [`SILENT`], ends the run of all, and rank 0
//! names it to them. While ranks still join, it may connect again within that time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Place;
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::output::New;
use crate::scratch::{self, random};
use crate::stdio::{message, say};

/// How long ranks wait for each other at the start, and when each says first that it waits.
const JOIN_MAX: Duration = Duration::from_secs(60);
const JOIN_LONG: Duration = Duration::from_secs(5);
/// How often a waiting rank says so.
const SAY: Duration = Duration::from_secs(8);
/// How long a connection may take to say who it is.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long rank 0 hears others once it knows that the run must end.
const LATE: Duration = Duration::from_secs(1);
/// The pause between two messages of a rank at most, and the longest silence of one that lives.
const BEAT: Duration = Duration::from_secs(1);
const SILENT: Duration = Duration::from_secs(8);
/// Time limit for the cleanup of a run that ends early.
const CLEANUP_MAX: Duration = Duration::from_secs(1);
/// The longest line: the values of one rank.
const LINE_MAX: usize = 256 << 20;
const HELLO_LEN_MAX: usize = 64 << 10;
/// Bytes of one read.
const PART: usize = 64 << 10;
/// The last step of a run.
const END: &str = "end";
/// The longest note.
const NOTE_MAX: u64 = 4096;

/// What ranks say to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Message {
    /// The first line of a rank to rank 0.
    Hello(Hello),
    /// The token is that of another run.
    Foreign,
    /// All ranks have come; the number of this one on its host, and the ranks of that host.
    Welcome(u32, u32),
    /// The run cannot go on: why, from rank 0, and from another rank what became of it.
    Ended(String),
    /// The sender lives.
    Alive,
    /// A step, and what this rank says in it.
    Own(String, Value),
    /// The answer to all.
    Agreed(Value),
    /// The last answer.
    Parted(Value),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Hello {
    token: String,
    version: String,
    rank: u32,
    size: u32,
    host: String,
    /// Hosts may have the same name.
    boot: String,
    /// The arguments in the form of `{:#?}`, which are the same for all.
    arguments: String,
}

impl Hello {
    fn name(&self) -> String {
        format!("rank {} on {}", self.rank, self.host)
    }
}

/// A connection to another rank.
#[derive(Debug)]
struct Peer {
    hello: Hello,
    /// Locked by the one who writes.
    stream: Mutex<Arc<TcpStream>>,
}

/// The end of a connection that is read. One descriptor serves both directions: there may be
/// thousands.
#[derive(Debug)]
struct Reader {
    stream: Arc<TcpStream>,
    /// The bytes of an incomplete line, and how many of them were searched for its end.
    bytes: Vec<u8>,
    seen: usize,
    /// When something came last.
    heard: Instant,
    /// Why nothing more can come, and how the peer ended if it said so.
    closed: Option<String>,
    ended: Option<String>,
}

impl Reader {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // A peer that reads nothing must not hold up the others.
        stream.set_write_timeout(Some(SILENT))?;
        let stream = Arc::new(stream);
        let (bytes, heard) = (Vec::new(), Instant::now());
        Ok(Self { stream, bytes, seen: 0, heard, closed: None, ended: None })
    }

    /// Reads once, and returns the messages that are complete; else why there can be no more.
    fn read(&mut self, most: usize) -> std::result::Result<Vec<Message>, String> {
        let found = self.read_open(most);
        self.closed = found.as_ref().err().cloned();
        found
    }

    fn read_open(&mut self, most: usize) -> std::result::Result<Vec<Message>, String> {
        let mut part = [0; PART];
        match (&*self.stream).read(&mut part) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(len) => self.bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        }
        self.heard = Instant::now();
        let strange = || "it sent something else than a message".to_owned();
        let mut messages = Vec::new();
        while let Some(end) = self.bytes[self.seen..].iter().position(|byte| *byte == b'\n') {
            let rest = self.bytes.split_off(self.seen + end + 1);
            messages.push(serde_json::from_slice(&self.bytes).map_err(|_| strange())?);
            (self.bytes, self.seen) = (rest, 0);
        }
        self.seen = self.bytes.len();
        if self.seen > most { Err(strange()) } else { Ok(messages) }
    }

    /// What became of the peer, if it is lost.
    fn lost(&self) -> Option<String> {
        let silent = || format!("silent for {SILENT:?}");
        let lost = || format!("was lost: {}", self.closed.clone().unwrap_or_else(silent));
        let is_lost = self.ended.is_some() || self.heard.elapsed() > SILENT;
        is_lost.then(|| self.ended.clone().unwrap_or_else(lost))
    }
}

/// The numbers of those of `readers` that can be read, once there is one or `most` is over.
fn readable<'a>(readers: impl Iterator<Item = &'a Reader>, most: Duration) -> Vec<usize> {
    let open = readers.enumerate().filter(|(_, one)| one.closed.is_none());
    let (numbers, mut all): (Vec<usize>, Vec<PollFd<'_>>) =
        open.map(|(number, one)| (number, PollFd::new(&*one.stream, PollFlags::IN))).unzip();
    let most = Timespec::try_from(most).ok();
    // An interrupted call found nothing.
    let _ = poll(&mut all, most.as_ref());
    let found = numbers.into_iter().zip(&all).filter(|(_, one)| !one.revents().is_empty());
    found.map(|(number, _)| number).collect()
}

fn line(message: &Message) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

impl Peer {
    fn send(&self, message: &Message) {
        self.send_line(&line(message));
    }

    /// Sends a line. A connection that fails is noticed by its reader.
    fn send_line(&self, line: &[u8]) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = (&**stream).write_all(line);
    }
}

/// All ranks of a run, seen by one of them.
#[derive(Debug)]
pub struct Ranks {
    /// Its place.
    pub place: Place,
    /// Its number on its host, and the number of ranks there.
    pub local: (u32, u32),
    /// Whether it is the first rank of its host.
    pub is_first_of_host: bool,
    /// The hosts of all ranks, as rank 0 knows them; of other ranks the own one alone.
    pub hosts: Vec<String>,
    /// Of rank 0 all others in order, else rank 0.
    peers: Arc<Vec<Arc<Peer>>>,
    inbox: Receiver<(u32, Message)>,
    /// Whether the ranks have parted, and may end.
    parted: Arc<AtomicBool>,
    /// The note of rank 0; removed with this value.
    _note: Option<New>,
}

impl Ranks {
    /// Meets the others. `arguments` must be those of all. If neither the launcher nor the user
    /// gives a token, rank 0 writes a random one into `folder`.
    ///
    /// # Errors
    /// Some do not come, or differ in version or arguments; errors of the network.
    pub fn meet(place: Place, arguments: &str, folder: Option<&Path>) -> Result<Self> {
        if place.is_folder() && !Path::new(&place.address).is_dir() {
            return Err(Failure::usage(format!("`MASTER_ADDR` is `{}`", place.address))
                .because("it has a `/`, and is no folder")
                .hint("set it to the host of rank 0, or to a folder that all ranks see"));
        }
        let parted = Arc::new(AtomicBool::new(false));
        let hello = Hello {
            token: place.token.clone().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").into(),
            rank: place.rank,
            size: place.size,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot: boot(),
            arguments: arguments.into(),
        };
        *this() = Some(Own { name: hello.name(), parted: Arc::clone(&parted), peers: Vec::new() });
        let mut hosts = vec![hello.host.clone()];
        let (connected, _note, local) = match place.rank {
            0 => {
                let (connected, note) = accept(&place, hello.clone(), folder)?;
                let others = connected.iter().map(|(peer, _)| &peer.hello);
                hosts = names(std::iter::once(&hello).chain(others));
                let local = locals(&hosts);
                for ((peer, _), local) in connected.iter().zip(&local[1..]) {
                    peer.send(&Message::Welcome(local.0, local.1));
                }
                (connected, note, local[0])
            }
            _ => {
                let (connected, local) = connect(&place, hello, folder)?;
                (vec![connected], None, local)
            }
        };
        let is_first_of_host = local.0 == 0;
        let local = (place.local.unwrap_or(local.0), local.1);
        let (sender, inbox) = channel();
        let (peers, readers): (Vec<_>, Vec<_>) = connected.into_iter().unzip();
        let peers = Arc::new(peers);
        let all = (Arc::clone(&peers), Arc::clone(&parted));
        start("ranks", move || listen(readers, &all.0, &all.1, &sender))?;
        let all = (Arc::clone(&peers), Arc::clone(&parted));
        start("beat", move || {
            while !all.1.load(Ordering::Acquire) {
                all.0.iter().for_each(|peer| peer.send(&Message::Alive));
                thread::sleep(BEAT);
            }
        })?;
        Ok(Self { place, local, is_first_of_host, hosts, peers, inbox, parted, _note })
    }

    /// Whether this is rank 0, which prints.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.place.rank == 0
    }

    /// Waits until all ranks are at this step with their `own` values, of which rank 0 makes the
    /// answer that each of them returns. A lost rank ends the process.
    ///
    /// # Errors
    /// Ranks are at different steps, or rank 0 can make no answer; this ends the run of all.
    pub fn agree<T, U>(
        &self,
        step: &str,
        own: T,
        make: impl FnOnce(Vec<T>) -> Result<U>,
    ) -> Result<U>
    where
        T: Serialize + DeserializeOwned,
        U: Serialize + DeserializeOwned,
    {
        if !self.is_first() {
            self.peers[0].send(&Message::Own(step.into(), serde_json::to_value(own)?));
            let all = self.collect(|message| match message {
                Message::Agreed(value) | Message::Parted(value) => Some(value),
                _ => None,
            });
            return Ok(serde_json::from_value(all.into_values().next().unwrap_or_default())?);
        }
        let others = self.collect(|message| match message {
            Message::Own(step, value) => Some((step, value)),
            _ => None,
        });
        let value_of = |(rank, (at, value)): (u32, (String, Value))| match at == step {
            true => Ok(serde_json::from_value(value)?),
            false => Err(Failure::new("the ranks do not fit together")
                .because(format!("rank {rank} is at the step `{at}`, rank 0 at `{step}`"))),
        };
        let all = std::iter::once(Ok(own)).chain(others.into_iter().map(value_of));
        let made = all.collect::<Result<Vec<T>>>().and_then(make);
        let made = made.inspect_err(|failure| self.fail(failure))?;
        let made = serde_json::to_value(made)?;
        let line = line(&match step {
            END => Message::Parted(made),
            _ => Message::Agreed(made),
        });
        if step == END {
            self.parted.store(true, Ordering::Release);
        }
        self.peers.iter().for_each(|peer| peer.send_line(&line));
        // Rank 0 reads it as the others do: a number may change in its last digit.
        match serde_json::from_slice(&line)? {
            Message::Agreed(value) | Message::Parted(value) => Ok(serde_json::from_value(value)?),
            _ => unreachable!("it is an answer"),
        }
    }

    /// As [`agree`](Self::agree), for the last time: then each rank may end.
    ///
    /// # Errors
    /// As those of `agree`.
    pub fn part<T, U>(&self, own: T, make: impl FnOnce(Vec<T>) -> Result<U>) -> Result<U>
    where
        T: Serialize + DeserializeOwned,
        U: Serialize + DeserializeOwned,
    {
        self.agree(END, own, make)
    }

    /// Ends the run of the other ranks, because this one fails.
    pub fn fail(&self, failure: &Failure) {
        if !self.parted.swap(true, Ordering::AcqRel) {
            let why = failure.in_one_line();
            let why = if self.is_first() { why } else { format!("failed: {why}") };
            let ended = Message::Ended(why);
            self.peers.iter().for_each(|peer| peer.send(&ended));
        }
    }

    /// Waits for a message from every peer.
    fn collect<T>(&self, pick: impl Fn(Message) -> Option<T>) -> BTreeMap<u32, T> {
        let mut found = BTreeMap::new();
        while found.len() < self.peers.len() {
            match self.inbox.recv() {
                Ok((rank, message)) => found.extend(pick(message).map(|value| (rank, value))),
                // A reader that has ended ends the process.
                Err(_) => thread::park(),
            }
        }
        found
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.into());
    thread.spawn(work).map(drop).map_err(|error| Failure::io("cannot start a thread", &error))
}

/// The number of this start of the host, and of the clock that this process sees.
fn boot() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let clock = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", boot.trim(), clock.display())
}

/// The names of the hosts of ranks, different ones for different hosts.
fn names<'a>(all: impl Iterator<Item = &'a Hello>) -> Vec<String> {
    let mut boots: BTreeMap<String, String> = BTreeMap::new();
    let name = |hello: &Hello| {
        let (host, boot) = (hello.host.clone(), hello.boot.clone());
        let first = boots.entry(host.clone()).or_insert_with(|| boot.clone());
        let short = boot.get(..8).unwrap_or(&boot);
        if *first == boot { host } else { format!("{host} ({short})") }
    };
    all.map(name).collect()
}

/// The number of each rank on its host, and the ranks of that host.
fn locals(hosts: &[String]) -> Vec<(u32, u32)> {
    let mut ranks: BTreeMap<&String, u32> = BTreeMap::new();
    let mut next = |host| {
        let own = ranks.entry(host).or_default();
        *own += 1;
        *own - 1
    };
    let numbers: Vec<u32> = hosts.iter().map(&mut next).collect();
    numbers.into_iter().zip(hosts).map(|(number, host)| (number, ranks[host])).collect()
}

/// Reads the messages of all peers, until the ranks have parted.
fn listen(
    mut readers: Vec<Reader>,
    peers: &[Arc<Peer>],
    parted: &AtomicBool,
    inbox: &Sender<(u32, Message)>,
) {
    readers.iter_mut().for_each(|reader| reader.heard = Instant::now());
    // With thousands of peers, one comes every moment: some are read together.
    let pause = Duration::from_micros(2 * readers.len() as u64);
    while !parted.load(Ordering::Acquire) {
        for index in readable(readers.iter(), BEAT) {
            match readers[index].read(LINE_MAX) {
                Ok(messages) => messages.into_iter().for_each(|message| match message {
                    Message::Alive => {}
                    Message::Ended(why) if peers[index].hello.rank == 0 => end(parted, &why, &[]),
                    Message::Ended(how) => lost(index, &how, peers, parted),
                    message => {
                        if matches!(message, Message::Parted(_)) {
                            // From now on rank 0 may close the connection.
                            parted.store(true, Ordering::Release);
                        }
                        let _ = inbox.send((peers[index].hello.rank, message));
                    }
                }),
                Err(why) => return lost(index, &format!("was lost: {why}"), peers, parted),
            }
        }
        let silent = (0..).zip(&readers).find_map(|(index, one)| Some((index, one.lost()?)));
        if let Some((index, why)) = silent {
            return lost(index, &why, peers, parted);
        }
        thread::sleep(pause);
    }
}

/// Ends the run for what became of a peer.
fn lost(index: usize, how: &str, peers: &[Arc<Peer>], parted: &AtomicBool) {
    let peer = &peers[index].hello;
    let others: &[Arc<Peer>] = if peer.rank == 0 { &[] } else { peers };
    end(parted, &format!("{} {how}", peer.name()), others);
}

/// Ends the run, also for `others`, unless the ranks have parted.
fn end(parted: &AtomicBool, why: &str, others: &[Arc<Peer>]) {
    // Until this process ends: a signal must not close its streams before the last words.
    let _this = this();
    if parted.swap(true, Ordering::AcqRel) {
        return;
    }
    others.iter().for_each(|peer| peer.send(&Message::Ended(why.into())));
    let hint = "its own output says why, if it could; start all ranks again";
    cleanup::say_progress();
    Failure::new("the run ended early").because(why).hint(hint).print();
    cleanup::run(CLEANUP_MAX);
    signal_hook::low_level::exit(1);
}

/// This rank, for the signal that ends it.
struct Own {
    name: String,
    parted: Arc<AtomicBool>,
    peers: Vec<Weak<Peer>>,
}

fn this() -> MutexGuard<'static, Option<Own>> {
    static OWN: Mutex<Option<Own>> = Mutex::new(None);
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a signal ends this rank, to its user and to the other ranks. Does nothing in a process
/// without others.
pub fn interrupted(signal: &str) {
    let mut this = this();
    let Some(Own { name, parted, peers }) = this.take() else { return };
    // From now on no end of another rank sets the exit code.
    if parted.swap(true, Ordering::AcqRel) {
        return;
    }
    let how = format!("was interrupted by {signal}");
    message(&format!("{name} {how}"));
    let (done, is_done) = channel();
    // A peer that reads nothing must not hold up the signal.
    let _ = start("interrupted", move || {
        for peer in peers.iter().filter_map(Weak::upgrade) {
            let is_to_rank_0 = peer.hello.rank == 0;
            let how = if is_to_rank_0 { how.clone() } else { format!("{name} {how}") };
            peer.send(&Message::Ended(how));
        }
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(CLEANUP_MAX);
}

type Connected = (Arc<Peer>, Reader);
/// Rank 0, and the number of this rank on its host with the ranks there.
type Joined = (Connected, (u32, u32));

fn connected(hello: Hello, reader: Reader) -> Connected {
    let stream = Mutex::new(Arc::clone(&reader.stream));
    let peer = Arc::new(Peer { hello, stream });
    this().iter_mut().for_each(|own| own.peers.push(Arc::downgrade(&peer)));
    (peer, reader)
}

/// The address at which rank 0 listens: loopback if `MASTER_ADDR` is that, else any. The name
/// of a host may lead to loopback there, as in Debian's `/etc/hosts`.
fn own_address(place: &Place) -> IpAddr {
    match place.address.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() => address,
        _ if place.address == "localhost" => Ipv4Addr::LOCALHOST.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A socket that is bound to `address`, and does not listen yet.
fn bound(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &SocketAddr::new(address, port))?;
    Ok(socket.into())
}

/// Listens for the others, with a folder at any port. Writes the note; sets the token if there is
/// none.
fn listener(
    place: &Place,
    own: &mut Hello,
    folder: Option<&Path>,
) -> Result<(TcpListener, Option<New>)> {
    let failed = |error: &io::Error| {
        Failure::io(format!("rank 0 cannot listen at {place}"), error)
            .hint("set `MASTER_PORT` to a port below a free one")
    };
    let address = if place.is_folder() { Ipv6Addr::UNSPECIFIED.into() } else { own_address(place) };
    let port = if place.is_folder() { 0 } else { place.port };
    let listener = bound(address, port)
        .or_else(|error| match address == IpAddr::from(Ipv6Addr::UNSPECIFIED) {
            // The kernel may have no IPv6.
            true => bound(Ipv4Addr::UNSPECIFIED.into(), port),
            false => Err(error),
        })
        .map_err(|error| failed(&error))?;
    let mut note = None;
    if let Some(path) = place.note(folder) {
        let port = listener.local_addr().map_err(|error| failed(&error))?.port();
        let token = match &place.token {
            Some(token) => token.clone(),
            None => format!("{:016x}{:016x}", random(), random()),
        };
        let write = || {
            // What a killed run left would lead to its port.
            let _ = std::fs::remove_file(&path);
            let note = New::create(&path, 0o600)?;
            let _ = scratch::lock(&note.file);
            (&*note.file).write_all(format!("{} {port} {token}\n", own.host).as_bytes())?;
            Ok(note)
        };
        match write() {
            Ok(written) => (note, own.token) = (Some(written), token),
            Err(error) => {
                // A file of this name, such as another user's note, would mislead the other ranks.
                let is_there = std::fs::symlink_metadata(&path).is_ok();
                let hint = match is_there {
                    true => "remove it, or set `FOREBAY_TOKEN` to a random text in all ranks",
                    false => "let `MASTER_ADDR` be a host, or a folder that rank 0 may write to",
                };
                if place.is_folder() || is_there {
                    return Err(Failure::at("write", &path, &error).hint(hint));
                }
            }
        }
    }
    // The others are refused until the note is there. The standard library lets 128 ranks wait, and
    // more would try again after seconds.
    net::listen(&listener, i32::MAX).map_err(|errno| failed(&errno.into()))?;
    Ok((listener, note))
}

/// Host and port of rank 0, and the token of its note.
fn address(place: &Place, own: &Hello, folder: Option<&Path>) -> io::Result<(String, u16, String)> {
    let read = |path: &Path| {
        let mut text = String::new();
        // A pipe with its name must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        File::from(open(path, flags, Mode::empty())?).take(NOTE_MAX).read_to_string(&mut text)?;
        let found = text.strip_suffix('\n').and_then(|line| {
            let (host, rest) = line.split_once(' ')?;
            let (port, token) = rest.split_once(' ')?;
            let host = if host == own.host { "localhost" } else { host };
            Some((host.to_owned(), port.parse().ok()?, token.to_owned()))
        });
        found.ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    let note = place.note(folder).map(|path| read(&path));
    match note.transpose() {
        found if place.is_folder() => found.map(|found| found.expect("a folder has a note")),
        found => {
            let token = found.ok().flatten().map_or_else(|| own.token.clone(), |found| found.2);
            Ok((place.address.clone(), place.port, token))
        }
    }
}

/// The ranks that have joined so far.
#[derive(Default)]
struct Joining {
    found: BTreeMap<u32, Connected>,
    /// Connections that have not sent their rank.
    new: Vec<Reader>,
    /// Why the run ends, and until when ranks that come learn it too.
    wrong: Option<(Failure, Instant)>,
    /// Whether a rank without a token has joined.
    has_warned: bool,
}

impl Joining {
    /// Accepts connections, and reads what they say first.
    fn accept(&mut self, listener: &TcpListener, own: &Hello, is_open: bool) {
        while let Ok((stream, _)) = listener.accept() {
            self.new.extend(Reader::new(stream));
        }
        let found = readable(self.new.iter(), Duration::from_millis(1));
        for (index, mut reader) in std::mem::take(&mut self.new).into_iter().enumerate() {
            if found.binary_search(&index).is_err() {
                self.new.push(reader);
                continue;
            }
            match reader.read(HELLO_LEN_MAX).as_deref() {
                Ok([]) => self.new.push(reader),
                Ok([Message::Hello(hello), ..]) => self.join(hello.clone(), reader, own, is_open),
                _ => {}
            }
        }
        self.new.retain(|reader| reader.heard.elapsed() < HELLO_MAX);
    }

    /// Lets a rank join. Ranks on hosts that do not see the note of rank 0 have no token, which
    /// `is_open` allows. A connection that does not fit may then be a stranger's, and does not end
    /// the run.
    fn join(&mut self, hello: Hello, reader: Reader, own: &Hello, is_open: bool) {
        let is_known = |hello: &Hello| !own.token.is_empty() && hello.token == own.token;
        let before = self.found.get(&hello.rank).map(|(peer, _)| &peer.hello);
        let may_join = is_open && hello.token.is_empty() && !before.is_some_and(is_known);
        if !is_known(&hello) && !may_join {
            refuse(&reader.stream, &Message::Foreign);
            return;
        }
        match differs(own, &hello) {
            Some(why) if is_known(&hello) => {
                let failure = Failure::new("the ranks do not fit together").because(why);
                self.wrong.get_or_insert((failure, Instant::now() + LATE));
            }
            Some(why) => {
                say(&format!("a connection was refused: {why}"));
                refuse(&reader.stream, &Message::Ended(why));
                return;
            }
            None if !is_known(&hello) && !self.has_warned => {
                self.has_warned = true;
                say("ranks have no token, so any program that reaches the port of rank 0 could \
                     join them: set `FOREBAY_TOKEN` to a random text, the same for all");
            }
            None => {}
        }
        let again = format!("{} joined again", hello.name());
        let new = connected(hello, reader);
        new.0.send(&Message::Alive);
        if let Some((old, _)) = self.found.insert(new.0.hello.rank, new) {
            old.send(&Message::Ended(again));
        }
    }

    /// Hears the ranks that have joined, and finds one that is lost.
    fn check(&mut self) {
        let mut readers: Vec<&mut Reader> = self.found.values_mut().map(|one| &mut one.1).collect();
        for index in readable(readers.iter().map(|one| &**one), Duration::ZERO) {
            // Beats, or how it ends. The end of a connection stays in the reader.
            for message in readers[index].read(HELLO_LEN_MAX).unwrap_or_default() {
                if let Message::Ended(how) = message {
                    readers[index].ended = Some(how);
                }
            }
        }
        let alive = line(&Message::Alive);
        self.found.values().for_each(|(peer, _)| peer.send_line(&alive));
        let lost = self.found.values().find_map(|(peer, reader)| Some((peer, reader.lost()?)));
        if let Some((peer, why)) = lost {
            let why = format!("{} {why}", peer.hello.name());
            let failure = Failure::new("the run ended before all ranks had come").because(why);
            self.wrong.get_or_insert((failure, Instant::now()));
        }
    }

    fn missing(&self, size: u32) -> String {
        let is_here =
            |rank: &u32| self.found.get(rank).is_some_and(|(_, one)| one.closed.is_none());
        let missing: Vec<u32> = (1..size).filter(|rank| !is_here(rank)).collect();
        let first: Vec<String> = missing.iter().take(8).map(u32::to_string).collect();
        let more = if missing.len() > first.len() { ", …" } else { "" };
        format!("{} of {size} ranks are missing: rank {}{more}", missing.len(), first.join(", "))
    }
}

/// Rank 0: waits for all others.
fn accept(
    place: &Place,
    mut own: Hello,
    folder: Option<&Path>,
) -> Result<(Vec<Connected>, Option<New>)> {
    scratch::allow_many_files(); // each rank has a connection
    let (listener, note) = listener(place, &mut own, folder)?;
    // The address is for the others, and may be known there.
    unresolved(place).into_iter().for_each(|why| say(&why));
    let mut joining = Joining::default();
    let began = Instant::now();
    let (mut checked, mut says) = (began, began + JOIN_LONG);
    loop {
        // Before the next messages are read: one more round follows.
        let is_over = joining.wrong.as_ref().is_some_and(|(_, until)| *until <= Instant::now());
        joining.accept(&listener, &own, place.token.is_none());
        let have_come = joining.found.len() + 1 >= place.size as usize;
        if checked.elapsed() > BEAT {
            joining.check();
            checked = Instant::now();
        }
        let is_complete = have_come && joining.found.values().all(|(_, one)| one.closed.is_none());
        if !is_complete && says <= Instant::now() {
            say(&format!("{} at {place}", joining.missing(place.size)));
            says = Instant::now() + SAY;
        }
        if !is_complete && joining.wrong.is_none() && began.elapsed() > JOIN_MAX {
            let failure = Failure::new(format!("waited {JOIN_MAX:?} at {place}"))
                .because(joining.missing(place.size))
                .hint("start all ranks within a minute, and let them reach that port");
            joining.wrong = Some((failure, Instant::now() + LATE));
        }
        match joining.wrong {
            Some((failure, _)) if is_over || have_come => {
                let ended = Message::Ended(failure.causes.join(": "));
                joining.found.values().for_each(|(peer, _)| peer.send(&ended));
                return Err(failure);
            }
            None if is_complete => break,
            _ => {}
        }
    }
    Ok((joining.found.into_values().collect(), note))
}

/// How two ranks differ that should not.
fn differs(own: &Hello, other: &Hello) -> Option<String> {
    let from = other.name();
    let fits = (1..own.size).contains(&other.rank) && other.size == own.size;
    match () {
        () if other.version != own.version => {
            Some(format!("{from} has version {}, rank 0 has {}", other.version, own.version))
        }
        () if !fits => {
            Some(format!("{from} expects {} ranks, rank 0 expects {}", other.size, own.size))
        }
        () if other.arguments != own.arguments => {
            let field = field(&own.arguments, &other.arguments);
            let field = field.map_or_else(String::new, |name| format!(": `{name}` differs"));
            Some(format!("{from} has other arguments than rank 0{field}"))
        }
        () => None,
    }
}

/// The first field that differs in two values in the form of `{:#?}`, as an option.
fn field(own: &str, other: &str) -> Option<String> {
    let same = own.lines().zip(other.lines()).take_while(|(own, other)| own == other).count();
    let lines = own.lines().take(same + 1).filter_map(|line| line.strip_prefix("    "));
    let fields =
        lines.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_once(": "));
    fields.last().map(|(name, _)| name.replace('_', "-"))
}

fn refuse(mut stream: &TcpStream, message: &Message) {
    let _ = stream.write_all(&line(message));
}

/// What a rank that waits for rank 0 knows.
struct Waiting {
    /// When rank 0 was heard last.
    heard: Option<Instant>,
    /// When this rank says next that it waits.
    says: Instant,
}

impl Waiting {
    fn say(&mut self, place: &Place, why: &str) {
        if self.says <= Instant::now() {
            say(&format!("rank {} waits for rank 0 at {place}: {why}", place.rank));
            self.says = Instant::now() + SAY;
        }
    }
}

/// Why the host of rank 0 cannot be reached by its name.
fn unresolved(place: &Place) -> Option<String> {
    let address = Some(place.address.as_str()).filter(|_| !place.is_folder())?;
    let error = (address, place.port).to_socket_addrs().err()?;
    Some(format!("`{address}` has no address: {error}"))
}

/// Another rank: connects to rank 0, and waits until all have come.
fn connect(place: &Place, own: Hello, folder: Option<&Path>) -> Result<Joined> {
    let began = Instant::now();
    let mut waiting = Waiting { heard: None, says: began + JOIN_LONG };
    if let Some(why) = unresolved(place) {
        // It may have one later.
        waiting.says = began;
        waiting.say(place, &why);
    }
    loop {
        let why = match try_connect(place, &own, folder, &mut waiting) {
            Ok(Ok(joined)) => return Ok(joined),
            Ok(Err(ended)) => {
                let failure = Failure::new(format!("rank 0 at {place} ended the run"));
                return Err(failure.because(ended));
            }
            Err(why) => why,
        };
        if waiting.heard.is_some_and(|heard: Instant| heard.elapsed() > SILENT) {
            let failure = Failure::new("the run ended before all ranks had come");
            return Err(failure.because(format!("rank 0 at {place} was lost: {why}")));
        }
        if waiting.heard.is_none() && began.elapsed() > JOIN_MAX {
            let failure = format!("rank {} cannot reach rank 0 at {place}", place.rank);
            return Err(Failure::new(failure)
                .because(why.to_string())
                .hint("let rank 0 start, and `MASTER_ADDR` name its host"));
        }
        waiting.say(place, &why.to_string());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Connects once; returns why the run ended, or the error after which a rank tries again.
fn try_connect(
    place: &Place,
    own: &Hello,
    folder: Option<&Path>,
    waiting: &mut Waiting,
) -> io::Result<std::result::Result<Joined, String>> {
    let (host, port, token) = address(place, own, folder)?;
    let mut stream = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in (host.as_str(), port).to_socket_addrs()? {
        stream = TcpStream::connect_timeout(&address, HELLO_MAX);
        if stream.is_ok() {
            break;
        }
    }
    let first = Hello { rank: 0, host: place.address.clone(), ..own.clone() };
    let (first, mut reader) = connected(first, Reader::new(stream?)?);
    let has_note = token != own.token;
    first.send(&Message::Hello(Hello { token, ..own.clone() }));
    loop {
        if readable(std::iter::once(&reader), BEAT / 2).is_empty() {
            first.send(&Message::Alive);
            match reader.lost() {
                Some(_) => return Err(io::Error::other(format!("silent for {SILENT:?}"))),
                None => waiting.say(place, "other ranks are missing"),
            }
            continue;
        }
        let (mut local, foreign) =
            (None, "it has another token: another run, or `FOREBAY_TOKEN` differs");
        for message in reader.read(HELLO_LEN_MAX).map_err(io::Error::other)? {
            match message {
                // An end may follow in the same read.
                Message::Welcome(number, count) => local = Some((number, count)),
                Message::Ended(why) => return Ok(Err(why)),
                // A killed run may have left the note; that of this run will follow.
                Message::Foreign if has_note => return Err(io::Error::other(foreign)),
                Message::Foreign => return Ok(Err(foreign.into())),
                _ => waiting.heard = Some(Instant::now()),
            }
        }
        if let Some(local) = local {
            return Ok(Ok(((first, reader), local)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: u32, size: u32, port: u16) -> Place {
        let (address, token) = ("127.0.0.1".to_owned(), Some("t".to_owned()));
        Place { rank, size, local: None, address, port, token }
    }

    fn free_port() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    }

    /// What each of `size` ranks returns.
    fn all<T: Send + 'static>(
        size: u32,
        work: impl Fn(u32, Result<Ranks>) -> T + Clone + Send + 'static,
        arguments: fn(u32) -> &'static str,
    ) -> Vec<T> {
        let port = free_port();
        let threads = (0..size).map(|rank| {
            let work = work.clone();
            thread::spawn(move || {
                work(rank, Ranks::meet(place(rank, size, port), arguments(rank), None))
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn ranks_wait_for_each_other_and_agree() {
        let passed = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let results = all(
            9,
            move |rank, ranks| {
                let ranks = ranks.unwrap();
                assert_eq!((ranks.place.local, ranks.local), (None, (rank, 9)));
                for phase in 1..20 {
                    passed.fetch_add(1, Ordering::SeqCst);
                    let first = ranks.agree("phase", rank, |all| Ok(all[0])).unwrap();
                    assert_eq!(first, 0, "what rank 0 says");
                    assert!(passed.load(Ordering::SeqCst) >= 9 * phase);
                }
                // A number that parsers without 128 bits read with another last digit.
                let own = if rank == 0 { 8.988_465_674_311_58e307 / 3.0 } else { 0.0 };
                let sum = ranks.agree("sum", own, |all| Ok(all.iter().sum::<f64>())).unwrap();
                (sum.to_bits(), ranks.part(rank, Ok).unwrap())
            },
            |_| "same",
        );
        assert!(results.iter().all(|one| *one == results[0]), "{results:?}");
        assert_eq!(results[0].1, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn ranks_at_different_steps_are_named() {
        let (first, mut others) = simulated(2);
        others.come(VERSION);
        let first = first.join().unwrap().unwrap();
        others.say(1, &Message::Own("limit".into(), Value::Null));
        let failure = first.agree("sample", Value::Null, |_| Ok(())).unwrap_err();
        let why = "rank 1 is at the step `limit`, rank 0 at `sample`";
        assert_eq!(failure.causes, [why]);
        others.hears_end(1, why);
    }

    #[test]
    fn other_arguments_are_named() {
        let failures = all(3, |_, ranks| ranks.err(), |rank| if rank == 2 { "b" } else { "a" });
        let first = failures[0].as_ref().unwrap();
        assert!(first.causes[0].starts_with("rank 2 on "), "{first:?}");
        assert!(failures[2].as_ref().unwrap().causes[0].contains("other arguments"));
    }

    #[test]
    fn strangers_hold_up_no_rank() {
        let port = free_port();
        let first = thread::spawn(move || Ranks::meet(place(0, 2, port), "a", None));
        let reach = || loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                return stream;
            }
        };
        let silent = reach();
        writeln!(reach(), "GET / HTTP/1.1").unwrap();
        let other = Place { token: Some("other".into()), ..place(1, 2, port) };
        let refused = Ranks::meet(other, "a", None).unwrap_err();
        assert!(refused.causes[0].contains("token"), "{refused:?}");
        let without = Place { token: None, ..place(1, 2, port) };
        assert!(Ranks::meet(without, "b", None).is_err(), "the token of rank 0 is required");
        let second = Ranks::meet(place(1, 2, port), "a", None).unwrap();
        let first = first.join().unwrap().unwrap();
        let one = thread::spawn(move || first.part(1, Ok).unwrap());
        assert_eq!((second.part(2, Ok).unwrap(), one.join().unwrap()), (vec![1, 2], vec![1, 2]));
        drop(silent);
    }

    /// Ranks from 1 on as rank 0 sees them, all from one thread.
    struct Simulated {
        port: u16,
        size: u32,
        streams: Vec<TcpStream>,
    }

    impl Simulated {
        fn come(&mut self, version: &str) {
            let begun = Instant::now();
            let stream = loop {
                match TcpStream::connect(("127.0.0.1", self.port)) {
                    Ok(stream) => break stream,
                    Err(_) => assert!(begun.elapsed() < JOIN_MAX),
                }
            };
            let (token, arguments, version) = ("t".into(), "same".into(), version.into());
            let rank = u32::try_from(self.streams.len() + 1).unwrap();
            let (size, host, boot) = (self.size, format!("host-{rank}"), "a".into());
            self.streams.push(stream);
            let hello = Hello { token, version, rank, size, host, boot, arguments };
            self.say(rank, &Message::Hello(hello));
        }

        /// Waits until a rank receives the end of the run, with these words.
        fn hears_end(&self, rank: u32, words: &str) {
            let stream = self.streams[rank as usize - 1].try_clone().unwrap();
            let mut reader = Reader::new(stream).unwrap();
            let begun = Instant::now();
            let is_end = |one: &Message| matches!(one, Message::Ended(why) if why.contains(words));
            while !reader.read(LINE_MAX).unwrap().iter().any(is_end) {
                assert!(begun.elapsed() < 2 * SILENT, "rank {rank}");
            }
        }

        fn say(&mut self, rank: u32, message: &Message) {
            let line = serde_json::to_string(message).unwrap() + "\n";
            self.streams[rank as usize - 1].write_all(line.as_bytes()).unwrap();
        }

        fn all_say(&mut self, message: &Message) {
            (1..self.size).for_each(|rank| self.say(rank, message));
        }
    }

    /// Rank 0 among this many, and the others.
    fn simulated(size: u32) -> (thread::JoinHandle<Result<Ranks>>, Simulated) {
        let port = free_port();
        let first = thread::spawn(move || Ranks::meet(place(0, size, port), "same", None));
        (first, Simulated { port, size, streams: Vec::new() })
    }

    const VERSION: &str = env!("CARGO_PKG_VERSION");

    #[test]
    fn one_of_hundreds_with_another_version_is_named_to_all() {
        let (first, mut others) = simulated(300);
        (1..200).for_each(|_| others.come(VERSION));
        others.come("0.0.0");
        thread::sleep(LATE / 4);
        others.come(VERSION);
        let failure = first.join().unwrap().unwrap_err();
        let why = "rank 200 on host-200 has version 0.0.0";
        assert!(failure.causes[0].starts_with(why), "{failure:?}");
        (1..=201).for_each(|rank| others.hears_end(rank, why));
    }

    #[test]
    fn late_ranks_are_waited_for() {
        let (first, mut others) = simulated(300);
        (1..298).for_each(|_| others.come(VERSION));
        thread::sleep(Duration::from_millis(1500));
        (298..300).for_each(|_| others.come(VERSION));
        let first = first.join().unwrap().unwrap();
        others.all_say(&Message::Own("a".into(), Value::Null));
        first.agree("a", Value::Null, |_| Ok(())).unwrap();
        assert_eq!((first.hosts.len(), first.hosts[299].as_str()), (300, "host-299"));
        let own = thread::spawn(move || first.part(Value::Null, |all| Ok(all.len())).unwrap());
        others.all_say(&Message::Own("end".into(), Value::Null));
        assert_eq!(own.join().unwrap(), 300);
    }

    #[test]
    fn a_rank_lost_while_others_join_is_named_unless_it_joins_again() {
        let (first, mut others) = simulated(4);
        (1..3).for_each(|_| others.come(VERSION));
        // Its launcher starts it again.
        drop(others.streams.remove(0));
        let second = others.streams.remove(0);
        others.come(VERSION);
        others.streams.push(second);
        let begun = Instant::now();
        while begun.elapsed() < SILENT + BEAT {
            (1..3).for_each(|rank| others.say(rank, &Message::Alive));
            thread::sleep(BEAT / 4);
        }
        assert!(!first.is_finished(), "it has come again");
        drop(others.streams.pop());
        let begun = Instant::now();
        while !first.is_finished() {
            others.say(1, &Message::Alive);
            thread::sleep(BEAT / 4);
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        let failure = first.join().unwrap().unwrap_err();
        assert!(failure.causes[0].starts_with("rank 2 on host-2 was lost: "), "{failure:?}");
        others.hears_end(1, "rank 2 on host-2 was lost");
    }

    #[test]
    fn rank_0_lost_while_others_join_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let second = thread::spawn(move || Ranks::meet(place(1, 2, port), "a", None));
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        stream.write_all(&line(&Message::Alive)).unwrap();
        drop(stream);
        let begun = Instant::now();
        let failure = second.join().unwrap().unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(failure.causes[0].starts_with("rank 0 at 127.0.0.1:"), "{failure:?}");
    }

    #[test]
    fn a_host_without_an_address_is_reported_at_once() {
        let at = |address: &str| unresolved(&Place { address: address.into(), ..place(1, 2, 1) });
        assert!(at("a..b").unwrap().starts_with("`a..b` has no address: "));
        assert_eq!(["::1", "127.0.0.1", "/a..b"].map(at), [None, None, None]);
    }

    #[test]
    fn a_random_token_is_in_the_folder_of_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let place = move |rank| Place { token: None, ..place(rank, 3, port) };
        // What a killed run left.
        let note = place(0).note(Some(folder.path())).unwrap();
        std::fs::write(&note, "host 1 stale\n").unwrap();
        let meet = |rank, folder: &Path| {
            let folder = folder.to_owned();
            thread::spawn(move || Ranks::meet(place(rank), "a", Some(&folder)))
        };
        let second = meet(1, folder.path());
        let first = meet(0, folder.path());
        while !second.is_finished()
            && std::fs::read(&note).is_ok_and(|text| text.ends_with(b"stale\n"))
        {}
        // A program that does not see the folder, and one with another token.
        let elsewhere = tempfile::tempdir().unwrap();
        let refused = Ranks::meet(Place { token: Some("x".into()), ..place(1) }, "a", None);
        assert!(refused.unwrap_err().causes[0].contains("token"));
        let other = Ranks::meet(place(2), "other", Some(elsewhere.path())).unwrap_err();
        assert!(other.causes[0].contains("other arguments"), "{other:?}");
        let third = meet(2, elsewhere.path());
        let all = [first, second, third].map(|rank| rank.join().unwrap().unwrap());
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&note).unwrap().permissions().mode() & 0o777, 0o600);
        drop(all);
        assert!(!note.exists());
    }

    #[test]
    fn a_note_that_cannot_be_replaced_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { token: None, ..place(0, 2, free_port()) };
        let note = place.note(Some(folder.path())).unwrap();
        std::fs::create_dir(&note).unwrap();
        let failure = Ranks::meet(place, "a", Some(folder.path())).unwrap_err();
        assert!(failure.message.contains(&*note.to_string_lossy()), "{failure:?}");
        assert!(failure.hint.unwrap().contains("`FOREBAY_TOKEN`"));
    }

    #[test]
    fn a_pipe_in_place_of_the_note_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { token: None, ..place(1, 2, 1) };
        let note = place.note(Some(folder.path())).unwrap();
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, note, kind, Mode::from_raw_mode(0o600), 0).unwrap();
        let own = Hello {
            token: String::new(),
            version: String::new(),
            rank: 1,
            size: 2,
            host: String::new(),
            boot: String::new(),
            arguments: String::new(),
        };
        let found = address(&place, &own, Some(folder.path())).unwrap();
        assert_eq!(found, ("127.0.0.1".into(), 1, String::new()));
    }

    #[test]
    fn rank_0_listens_on_loopback_only_if_that_is_the_address() {
        let address = |name: &str| {
            let place = Place { address: name.into(), ..place(0, 2, 1) };
            own_address(&place).to_string()
        };
        let names = ["127.0.0.1", "127.0.1.1", "::1", "localhost", "node0", "10.0.0.1", "fe80::1"];
        let all = ["127.0.0.1", "127.0.1.1", "::1", "127.0.0.1", "::", "::", "::"];
        assert_eq!(names.map(address), all);
        if let Ok(listener) = bound(Ipv6Addr::UNSPECIFIED.into(), 0) {
            net::listen(&listener, 1).unwrap();
            let port = listener.local_addr().unwrap().port();
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }

    #[test]
    fn the_argument_that_differs_is_named() {
        #[derive(Debug)]
        #[expect(dead_code, reason = "it is printed")]
        struct Args {
            paths: Vec<&'static str>,
            block_size: Vec<u64>,
            time: Option<Duration>,
        }
        let of = |paths: &[&'static str], block_size: &[u64], time: Option<Duration>| {
            format!("{:#?}", Args { paths: paths.into(), block_size: block_size.into(), time })
        };
        let own = of(&["a"], &[1, 2], None);
        let differs = |other: String| field(&own, &other).unwrap();
        assert_eq!(differs(of(&["b"], &[1], None)), "paths");
        assert_eq!(differs(of(&["a"], &[1, 3], None)), "block-size");
        assert_eq!(differs(of(&["a"], &[], None)), "block-size");
        assert_eq!(differs(of(&["a"], &[1, 2, 3], None)), "block-size");
        assert_eq!(differs(of(&["a"], &[1, 2], Some(BEAT))), "time");
    }

    #[test]
    fn hosts_of_one_name_are_apart() {
        let hello = |host: &str, boot: &str| Hello {
            token: String::new(),
            version: String::new(),
            rank: 0,
            size: 4,
            host: host.into(),
            boot: boot.into(),
            arguments: String::new(),
        };
        let all = [hello("a", "1"), hello("b", "2"), hello("a", "1"), hello("a", "3")];
        let names = names(all.iter());
        assert_eq!(names, ["a", "b", "a", "a (3)"]);
        assert_eq!(locals(&names), [(0, 2), (0, 1), (1, 2), (0, 1)]);
    }

    /// Held by a test of ten thousand ranks: both use all descriptors that the process may have.
    static TEN_THOUSAND: Mutex<()> = Mutex::new(());

    /// Ten thousand ranks, as rank 0 sees them: the others are lines of text from one thread.
    #[test]
    #[ignore = "long"]
    fn rank_0_meets_ten_thousand() {
        use rustix::process::{Resource, getrlimit};

        let _alone = TEN_THOUSAND.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = getrlimit(Resource::Nofile);
        // Both ends are in this process, and some limits allow 20,000 files.
        let most = limit.maximum.map_or(u64::MAX, |most| most.saturating_sub(100) / 2);
        let size = u32::try_from(most.min(10_000)).unwrap();
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
        };
        let before = resident();
        let (first, mut others) = simulated(size);
        let first = thread::spawn(move || {
            let ranks = first.join().unwrap().unwrap();
            ranks.agree("a", Value::Null, |_| Ok(())).unwrap();
            ranks.part(Value::Null, |all| Ok(all.len())).unwrap()
        });
        let begun = Instant::now();
        (1..size).for_each(|_| others.come(VERSION));
        let own = |step: &str, value| Message::Own(step.into(), value);
        others.all_say(&own("a", Value::Null));
        let mut last = Reader::new(others.streams[0].try_clone().unwrap()).unwrap();
        while !last.read(LINE_MAX).unwrap().contains(&Message::Agreed(Value::Null)) {}
        others.all_say(&own("end", serde_json::json!(vec![0.5; 100])));
        let all = first.join().unwrap();
        let (took, memory) = (begun.elapsed(), resident() - before);
        println!("{size} ranks met, waited and reported in {took:.1?} and {} MiB", memory >> 20);
        assert_eq!(all, size as usize);
        assert!(took < Duration::from_secs(5) && memory < 1 << 30, "{took:?}, {memory}");
    }

    /// Set in the process of rank 0: its port, and the number of ranks.
    const INSIDE: &str = "FOREBAY_TEST_RANK_0";

    /// One of ten thousand ranks dies, and all others learn its name.
    #[test]
    #[ignore = "long"]
    fn one_lost_among_ten_thousand_is_named_to_all() {
        use rustix::process::{Resource, getrlimit};

        if let Ok(place_of_0) = std::env::var(INSIDE) {
            let (port, size) = place_of_0.split_once(' ').unwrap();
            let place = place(0, size.parse().unwrap(), port.parse().unwrap());
            let ranks = Ranks::meet(place, "same", None).unwrap();
            loop {
                ranks.agree("a", Value::Null, |_| Ok(())).unwrap();
            }
        }
        let _alone = TEN_THOUSAND.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = getrlimit(Resource::Nofile);
        let most = limit.maximum.map_or(u64::MAX, |most| most.saturating_sub(100));
        let size = u32::try_from(most.min(10_000)).unwrap();
        let port = free_port();
        let name = "ranks::meet::tests::one_lost_among_ten_thousand_is_named_to_all";
        let mut first = std::process::Command::new(std::env::current_exe().unwrap());
        first.args(["--exact", name, "--ignored", "--nocapture"]);
        let mut first = first.env(INSIDE, format!("{port} {size}")).spawn().unwrap();
        let mut others = Simulated { port, size, streams: Vec::new() };
        (1..size).for_each(|_| others.come(VERSION));
        others.all_say(&Message::Own("a".into(), Value::Null));
        let mut last = Reader::new(others.streams[0].try_clone().unwrap()).unwrap();
        while !last.read(LINE_MAX).unwrap().contains(&Message::Agreed(Value::Null)) {}
        let begun = Instant::now();
        let lost = size / 2;
        drop(others.streams.swap_remove(lost as usize - 1));
        for (at, stream) in others.streams.into_iter().enumerate() {
            let mut stream = Reader::new(stream).unwrap();
            let is_end = |message: &Message| {
                matches!(message, Message::Ended(why)
                if why.contains(&format!("rank {lost} on host-{lost} was lost")))
            };
            while !stream.read(LINE_MAX).unwrap().iter().any(is_end) {
                assert!(begun.elapsed() < Duration::from_secs(10), "stream {at}");
            }
        }
        println!("{size} ranks ended in {:.1?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(first.wait().unwrap().code(), Some(1));
    }
}
