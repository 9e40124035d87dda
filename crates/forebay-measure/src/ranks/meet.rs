//! Ranks meet at rank 0 over TCP, wait for each other, and send it their results.
//!
//! Each message is a line of JSON. Every rank says at least every [`BEAT`] that it lives. A rank
//! that ends early, or is silent for [`SILENT`], ends the run of all, and rank 0 names it to them.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Place;
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::output::New;
use crate::scratch;

/// How long ranks wait for each other at the start.
const JOIN_MAX: Duration = Duration::from_secs(60);
/// How long a connection may take to say who it is.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// How long rank 0 hears others once it knows that the run must end.
const LATE: Duration = Duration::from_secs(1);
/// The pause between two messages of a rank at most, and the longest silence of one that lives.
const BEAT: Duration = Duration::from_secs(1);
const SILENT: Duration = Duration::from_secs(8);
/// Time limit for the cleanup of a run that ends early.
const CLEANUP_MAX: Duration = Duration::from_secs(1);
/// The longest line: the results of one rank.
const LINE_MAX: usize = 256 << 20;
const HELLO_LEN_MAX: usize = 64 << 10;
/// Bytes of one read.
const PART: usize = 64 << 10;

/// What ranks say to each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Message {
    /// The first line of a rank to rank 0.
    Hello(Hello),
    /// All ranks have come.
    Welcome,
    /// The run cannot go on.
    Ended(String),
    /// The sender lives, and its clock shows this many seconds since 1970.
    Alive(f64),
    /// The sender waits for this phase.
    Ready(u64),
    /// All are ready for this phase, and what rank 0 says in it.
    Go(u64, Value),
    /// The results of a rank.
    Results(Value),
    /// All results have come.
    Done,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Hello {
    token: String,
    version: String,
    rank: u32,
    size: u32,
    host: String,
    /// The arguments, which are the same for all.
    arguments: String,
}

/// A connection to another rank.
#[derive(Debug)]
struct Peer {
    rank: u32,
    host: String,
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
}

impl Reader {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        // A peer that reads nothing must not hold up the others.
        stream.set_write_timeout(Some(SILENT))?;
        let stream = Arc::new(stream);
        Ok(Self { stream, bytes: Vec::new(), seen: 0, heard: Instant::now() })
    }

    /// Reads once, and returns the messages that are complete; else why there can be no more.
    fn read(&mut self, most: usize) -> std::result::Result<Vec<Message>, String> {
        let mut part = [0; PART];
        match (&*self.stream).read(&mut part) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(len) => self.bytes.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(Vec::new()),
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
}

/// The numbers of those of `streams` that can be read, once there is one or `most` is over.
fn readable<'a>(streams: impl Iterator<Item = &'a TcpStream>, most: Duration) -> Vec<usize> {
    let mut all: Vec<PollFd<'_>> = streams.map(|one| PollFd::new(one, PollFlags::IN)).collect();
    let most = Timespec::try_from(most).ok();
    // An interrupted call found nothing.
    let _ = poll(&mut all, most.as_ref());
    let found = all.iter().enumerate().filter(|(_, one)| !one.revents().is_empty());
    found.map(|(index, _)| index).collect()
}

impl Peer {
    /// Sends a message. A connection that fails is noticed by its reader.
    fn send(&self, message: &Message) {
        let mut line = serde_json::to_vec(message).unwrap_or_default();
        line.push(b'\n');
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = (&**stream).write_all(&line);
    }
}

/// All ranks of a run, seen by one of them.
#[derive(Debug)]
pub struct Ranks {
    /// Its place.
    pub place: Place,
    /// Of rank 0 all others in order, else rank 0.
    peers: Arc<Vec<Peer>>,
    inbox: Receiver<(u32, Message)>,
    phase: u64,
    /// Whether the ranks have parted, and may end.
    parted: Arc<AtomicBool>,
    clocks: Arc<Clocks>,
    /// The note by which others find rank 0; removed with this value.
    _note: Option<New>,
}

/// By how many seconds the clocks of other ranks are ahead, the least that was seen: a message
/// takes time too.
type Clocks = Mutex<BTreeMap<u32, f64>>;

impl Ranks {
    /// Meets the others. `arguments` must be those of all.
    ///
    /// # Errors
    /// Some do not come, or differ in version or arguments; errors of the network.
    pub fn meet(place: Place, arguments: &str) -> Result<Self> {
        let hello = Hello {
            token: place.token.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            rank: place.rank,
            size: place.size,
            host: host(),
            arguments: arguments.into(),
        };
        let (connected, note) = match place.rank {
            0 => accept(&place, &hello)?,
            _ => (vec![connect(&place, hello)?], None),
        };
        let (sender, inbox) = channel();
        let parted = Arc::new(AtomicBool::new(false));
        let (peers, readers): (Vec<Peer>, Vec<_>) = connected.into_iter().unzip();
        let peers = Arc::new(peers);
        let clocks = Arc::default();
        let all = (Arc::clone(&peers), Arc::clone(&parted), Arc::clone(&clocks));
        start("ranks", move || listen(readers, &all, &sender))?;
        let all = (Arc::clone(&peers), Arc::clone(&parted));
        start("beat", move || {
            while !all.1.load(Ordering::Acquire) {
                all.0.iter().for_each(|peer| peer.send(&Message::Alive(clock())));
                thread::sleep(BEAT);
            }
        })?;
        if place.rank == 0 {
            peers.iter().for_each(|peer| peer.send(&Message::Welcome));
        }
        Ok(Self { place, peers, inbox, phase: 0, parted, clocks, _note: note })
    }

    /// Whether this is rank 0, which prints.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.place.rank == 0
    }

    /// The hosts of all ranks, as rank 0 knows them.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        std::iter::once(host()).chain(self.peers.iter().map(|peer| peer.host.clone())).collect()
    }

    /// The ranks whose clocks differ from this one's by more than a second, and how many seconds
    /// they are ahead.
    #[must_use]
    pub fn other_clocks(&self) -> Vec<(u32, f64)> {
        let clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.iter().map(|(rank, ahead)| (*rank, *ahead)).filter(|one| one.1.abs() > 1.0).collect()
    }

    /// Waits until all ranks are here. A lost rank ends the process.
    pub fn barrier(&mut self) {
        self.share(Value::Null);
    }

    /// Waits until all ranks are here; returns what rank 0 gave as `own`.
    pub fn share(&mut self, own: Value) -> Value {
        self.phase += 1;
        let phase = self.phase;
        if self.is_first() {
            self.collect(|message| (message == Message::Ready(phase)).then_some(()));
            self.peers.iter().for_each(|peer| peer.send(&Message::Go(phase, own.clone())));
            return own;
        }
        self.peers[0].send(&Message::Ready(phase));
        let value = self.collect(|message| match message {
            Message::Go(now, value) if now == phase => Some(value),
            _ => None,
        });
        value.into_values().next().unwrap_or_default()
    }

    /// Sends `own` results to rank 0, which gets those of all ranks in order; then they part.
    pub fn gather(self, own: Value) -> Vec<Value> {
        let mut all = Vec::new();
        if self.is_first() {
            let others = self.collect(|message| match message {
                Message::Results(results) => Some(results),
                _ => None,
            });
            all = std::iter::once(own).chain(others.into_values()).collect();
            self.parted.store(true, Ordering::Release);
            self.peers.iter().for_each(|peer| peer.send(&Message::Done));
        } else {
            self.peers[0].send(&Message::Results(own));
            self.collect(|message| (message == Message::Done).then_some(()));
        }
        all
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

/// Seconds since 1970.
fn clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Reads the messages of all peers, until the ranks have parted.
fn listen(
    mut readers: Vec<Reader>,
    (peers, parted, clocks): &(Arc<Vec<Peer>>, Arc<AtomicBool>, Arc<Clocks>),
    inbox: &Sender<(u32, Message)>,
) {
    readers.iter_mut().for_each(|reader| reader.heard = Instant::now());
    // With thousands of peers, one comes every moment: some are read together.
    let pause = Duration::from_micros(2 * readers.len() as u64);
    while !parted.load(Ordering::Acquire) {
        let found = readable(readers.iter().map(|reader| &*reader.stream), BEAT);
        for index in found {
            let (peer, reader) = (&peers[index], &mut readers[index]);
            match reader.read(LINE_MAX) {
                Ok(messages) => {
                    messages.into_iter().for_each(|one| heard(one, peer, (parted, clocks), inbox));
                }
                Err(why) => return lost(peer, &why, peers, parted),
            }
        }
        let silent = readers.iter().position(|reader| reader.heard.elapsed() > SILENT);
        if let Some(index) = silent {
            return lost(&peers[index], &format!("silent for {SILENT:?}"), peers, parted);
        }
        thread::sleep(pause);
    }
}

fn heard(
    message: Message,
    peer: &Peer,
    (parted, clocks): (&AtomicBool, &Clocks),
    inbox: &Sender<(u32, Message)>,
) {
    match message {
        Message::Alive(sent) => {
            let ahead = sent - clock();
            let mut clocks = clocks.lock().unwrap_or_else(PoisonError::into_inner);
            let least = clocks.entry(peer.rank).or_insert(ahead);
            *least = if ahead.abs() < least.abs() { ahead } else { *least };
        }
        Message::Ended(why) => end(parted, &why, &[]),
        message => {
            if message == Message::Done {
                // From now on rank 0 may close the connection.
                parted.store(true, Ordering::Release);
            }
            let _ = inbox.send((peer.rank, message));
        }
    }
}

fn lost(peer: &Peer, why: &str, peers: &[Peer], parted: &AtomicBool) {
    let others: &[Peer] = if peer.rank == 0 { &[] } else { peers };
    end(parted, &format!("rank {} on {} was lost: {why}", peer.rank, peer.host), others);
}

/// Ends the run, also for `others`, unless the ranks have parted.
fn end(parted: &AtomicBool, why: &str, others: &[Peer]) {
    if parted.swap(true, Ordering::AcqRel) {
        return;
    }
    others.iter().for_each(|peer| peer.send(&Message::Ended(why.into())));
    let hint = "its own output says why, if it could; start all ranks again";
    Failure::new("the run ended early").because(why).hint(hint).print();
    cleanup::run(CLEANUP_MAX);
    signal_hook::low_level::exit(1);
}

type Connected = (Peer, Reader);

fn connected(rank: u32, host: String, reader: Reader) -> Connected {
    let stream = Mutex::new(Arc::clone(&reader.stream));
    (Peer { rank, host, stream }, reader)
}

/// Listens for the others; with a folder at any port, which a note in it names.
fn listener(place: &Place) -> Result<(TcpListener, Option<New>)> {
    let failed = |error: &std::io::Error| {
        Failure::io(format!("rank 0 cannot listen at {place}"), error)
            .hint("set `MASTER_PORT` to a port below a free one")
    };
    let anywhere =
        |port| TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)));
    let listener = match place.note() {
        Some(_) => anywhere(0),
        // The address may be that of a service before this host.
        None => TcpListener::bind((place.address.as_str(), place.port))
            .or_else(|_| anywhere(place.port)),
    };
    let ready = |listener: TcpListener| {
        listener.set_nonblocking(true)?;
        // The standard library lets 128 ranks wait to be accepted. More try again after seconds.
        rustix::net::listen(&listener, i32::MAX)?;
        Ok(listener)
    };
    let listener = listener.and_then(ready).map_err(|error| failed(&error))?;
    let Some(path) = place.note() else { return Ok((listener, None)) };
    let port = listener.local_addr().map_err(|error| failed(&error))?.port();
    let write = || {
        // What a killed run left would lead to its port.
        let _ = std::fs::remove_file(&path);
        let note = New::create(&path, 0o644)?;
        (&*note.file).write_all(format!("{} {port}\n", host()).as_bytes())?;
        Ok(note)
    };
    let note = write().map_err(|error| {
        Failure::at("write", &path, &error)
            .hint("let `MASTER_ADDR` be a host, or a folder that rank 0 may write to")
    })?;
    Ok((listener, Some(note)))
}

/// The address of rank 0.
fn address(place: &Place) -> std::io::Result<(String, u16)> {
    let Some(path) = place.note() else { return Ok((place.address.clone(), place.port)) };
    let text = std::fs::read_to_string(path)?;
    let found = text.trim_end().split_once(' ').and_then(|(name, port)| {
        let name = if name == host() { "localhost" } else { name };
        Some((name.to_owned(), port.parse().ok()?))
    });
    found.filter(|_| text.ends_with('\n')).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Rank 0: waits for all others.
fn accept(place: &Place, own: &Hello) -> Result<(Vec<Connected>, Option<New>)> {
    scratch::allow_many_files(); // each rank has a connection
    let (listener, note) = listener(place)?;
    let mut found: BTreeMap<u32, Connected> = BTreeMap::new();
    // Connections that have not sent their rank.
    let mut new: Vec<Reader> = Vec::new();
    let began = Instant::now();
    // Why the run ends, and since when. Ranks that come a little later learn it too.
    let mut wrong: Option<(Failure, Instant)> = None;
    loop {
        // Before the next messages are read: one more round follows.
        let is_over = wrong.as_ref().is_some_and(|(_, since)| since.elapsed() > LATE);
        while let Ok((stream, _)) = listener.accept() {
            new.extend(Reader::new(stream));
        }
        let mut hellos = Vec::new();
        for index in readable(new.iter().map(|one| &*one.stream), Duration::from_millis(1)) {
            match new[index].read(HELLO_LEN_MAX).as_deref() {
                Ok([]) => {}
                Ok([Message::Hello(hello), ..]) => hellos.push((index, Some(hello.clone()))),
                _ => hellos.push((index, None)),
            }
        }
        // The last first, so that the numbers of the others stay.
        for (index, hello) in hellos.into_iter().rev() {
            let reader = new.swap_remove(index);
            let Some(hello) = hello else { continue };
            if hello.token != own.token {
                refuse(&reader.stream, "this is another run: its token differs");
                continue;
            }
            let (rank, host) = (hello.rank, hello.host.clone());
            let again = || format!("rank {rank} came twice, now from {host}");
            let before = found.insert(rank, connected(rank, host.clone(), reader));
            let why = differs(own, &hello).or_else(|| before.is_some().then(again));
            if let Some((peer, _)) = before {
                peer.send(&Message::Ended(again()));
            }
            if let (Some(why), None) = (why, &wrong) {
                let failure = Failure::new("the ranks do not fit together").because(why);
                wrong = Some((failure, Instant::now()));
            }
        }
        new.retain(|reader| reader.heard.elapsed() < HELLO_MAX);
        let have_come = found.len() + 1 >= place.size as usize;
        if !have_come && wrong.is_none() && began.elapsed() > JOIN_MAX {
            let missing = (1..place.size).filter(|rank| !found.contains_key(rank));
            let missing: Vec<String> = missing.take(8).map(|rank| rank.to_string()).collect();
            let why = format!("of {} ranks these did not come: {}", place.size, missing.join(", "));
            let failure = Failure::new(format!("waited {JOIN_MAX:?} at {place}"))
                .because(why)
                .hint("start all ranks within a minute, and let them reach that port");
            wrong = Some((failure, Instant::now()));
        }
        match wrong {
            Some((failure, _)) if is_over || have_come => {
                let ended = Message::Ended(failure.causes.join(": "));
                found.values().for_each(|(peer, _)| peer.send(&ended));
                return Err(failure);
            }
            None if have_come => break,
            _ => {}
        }
    }
    Ok((found.into_values().collect(), note))
}

/// How two ranks differ that should not.
fn differs(own: &Hello, other: &Hello) -> Option<String> {
    let from = format!("rank {} on {}", other.rank, other.host);
    let fits = (1..own.size).contains(&other.rank) && other.size == own.size;
    match () {
        () if other.version != own.version => {
            Some(format!("{from} has version {}, rank 0 has {}", other.version, own.version))
        }
        () if !fits => Some(format!("{from} is one of {}, rank 0 one of {}", other.size, own.size)),
        () if other.arguments != own.arguments => {
            Some(format!("{from} has other arguments than rank 0"))
        }
        () => None,
    }
}

fn refuse(mut stream: &TcpStream, why: &str) {
    let line = serde_json::to_string(&Message::Ended(why.into())).unwrap_or_default();
    let _ = writeln!(stream, "{line}");
}

/// Another rank: connects to rank 0, and waits until all have come.
fn connect(place: &Place, hello: Hello) -> Result<Connected> {
    let failed = |error: &std::io::Error| {
        Failure::io(format!("rank {} cannot reach rank 0 at {place}", place.rank), error)
            .hint("let rank 0 start, and `MASTER_ADDR` name its host")
    };
    let began = Instant::now();
    let stream = loop {
        let addresses =
            address(place).and_then(|(name, port)| (name.as_str(), port).to_socket_addrs());
        let tried = addresses.and_then(|all| {
            let mut last = Err(std::io::ErrorKind::AddrNotAvailable.into());
            for address in all {
                last = TcpStream::connect_timeout(&address, HELLO_MAX);
                if last.is_ok() {
                    break;
                }
            }
            last
        });
        match tried {
            Ok(stream) => break stream,
            Err(error) if began.elapsed() > JOIN_MAX => return Err(failed(&error)),
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    };
    let mut reader = Reader::new(stream).map_err(|error| failed(&error))?;
    let mut line = serde_json::to_vec(&Message::Hello(hello)).unwrap_or_default();
    line.push(b'\n');
    (&*reader.stream).write_all(&line).map_err(|error| failed(&error))?;
    let no_answer =
        |why: &str| Failure::new(format!("rank 0 at {place} did not answer")).because(why);
    while began.elapsed() < JOIN_MAX + SILENT {
        if readable(std::iter::once(&*reader.stream), BEAT).is_empty() {
            continue;
        }
        let messages = reader.read(HELLO_LEN_MAX).map_err(|why| no_answer(&why))?;
        let mut is_welcome = false;
        for message in messages {
            match message {
                // An end may follow in the same read.
                Message::Welcome => is_welcome = true,
                Message::Ended(why) => {
                    let ended = Failure::new(format!("rank 0 at {place} ended the run"));
                    return Err(ended.because(why));
                }
                _ => {}
            }
        }
        if is_welcome {
            return Ok(connected(0, place.address.clone(), reader));
        }
    }
    Err(no_answer("other ranks did not come"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: u32, size: u32, port: u16) -> Place {
        let (address, token) = ("127.0.0.1".to_owned(), "t".to_owned());
        Place { rank, size, local: rank, local_size: None, address, port, token }
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
            thread::spawn(move || work(rank, Ranks::meet(place(rank, size, port), arguments(rank))))
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn ranks_wait_for_each_other_and_their_results_come_in_order() {
        let passed = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let results = all(
            9,
            move |rank, ranks| {
                let mut ranks = ranks.unwrap();
                for phase in 1..20 {
                    passed.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(ranks.share(rank.into()), 0, "what rank 0 says");
                    assert!(passed.load(Ordering::SeqCst) >= 9 * phase);
                }
                ranks.gather(serde_json::json!({ "rank": rank }))
            },
            |_| "same",
        );
        assert!(results[1..].iter().all(Vec::is_empty));
        let order: Vec<_> = results[0].iter().map(|one| one["rank"].as_u64().unwrap()).collect();
        assert_eq!(order, (0..9).collect::<Vec<_>>());
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
        let first = thread::spawn(move || Ranks::meet(place(0, 2, port), "a"));
        let reach = || loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                return stream;
            }
        };
        let silent = reach();
        writeln!(reach(), "GET / HTTP/1.1").unwrap();
        let other = Place { token: "other".into(), ..place(1, 2, port) };
        let refused = Ranks::meet(other, "a").unwrap_err();
        assert!(refused.causes[0].contains("token"), "{refused:?}");
        let second = Ranks::meet(place(1, 2, port), "a").unwrap();
        let first = first.join().unwrap().unwrap();
        let (one, two) = (thread::spawn(|| first.gather(1.into())), second.gather(2.into()));
        assert_eq!((one.join().unwrap().len(), two.len()), (2, 0));
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
            let (size, host) = (self.size, format!("host-{rank}"));
            self.streams.push(stream);
            self.say(rank, &Message::Hello(Hello { token, version, rank, size, host, arguments }));
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
        let first = thread::spawn(move || Ranks::meet(place(0, size, port), "same"));
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
        for (at, stream) in others.streams.into_iter().enumerate() {
            let received = Reader::new(stream).unwrap().read(LINE_MAX).unwrap();
            assert!(
                matches!(&received[..], [Message::Ended(received)] if received.starts_with(why)),
                "stream {at}: {received:?}"
            );
        }
    }

    #[test]
    fn late_ranks_are_waited_for_and_other_clocks_are_noticed() {
        let (first, mut others) = simulated(300);
        (1..298).for_each(|_| others.come(VERSION));
        thread::sleep(Duration::from_millis(1500));
        (298..300).for_each(|_| others.come(VERSION));
        let mut first = first.join().unwrap().unwrap();
        for rank in 1..300 {
            let ahead = [0.0, 120.0, -7.5][usize::try_from(rank % 100).unwrap().min(2)];
            others.say(rank, &Message::Alive(clock() + if rank % 100 > 2 { 0.0 } else { ahead }));
            others.say(rank, &Message::Ready(1));
        }
        first.barrier();
        let clocks = first.other_clocks();
        let ranks: Vec<u32> = clocks.iter().map(|(rank, _)| *rank).collect();
        assert_eq!(ranks, [1, 2, 101, 102, 201, 202]);
        assert!((clocks[0].1 - 120.0).abs() < 1.0 && (clocks[1].1 + 7.5).abs() < 1.0, "{clocks:?}");
        let own = thread::spawn(move || first.gather(Value::Null));
        others.all_say(&Message::Results(Value::Null));
        assert_eq!(own.join().unwrap().len(), 300);
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
            let mut ranks = first.join().unwrap().unwrap();
            ranks.barrier();
            ranks.gather(Value::Null)
        });
        let begun = Instant::now();
        (1..size).for_each(|_| others.come(VERSION));
        others.all_say(&Message::Ready(1));
        let mut last = Reader::new(others.streams[0].try_clone().unwrap()).unwrap();
        while !last.read(LINE_MAX).unwrap().contains(&Message::Go(1, Value::Null)) {}
        others.all_say(&Message::Results(serde_json::json!(vec![0.5; 100])));
        let all = first.join().unwrap();
        let (took, memory) = (begun.elapsed(), resident() - before);
        println!("{size} ranks met, waited and reported in {took:.1?} and {} MiB", memory >> 20);
        assert_eq!(all.len(), size as usize);
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
            let mut ranks = Ranks::meet(place, "same").unwrap();
            loop {
                ranks.barrier();
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
        others.all_say(&Message::Ready(1));
        let mut last = Reader::new(others.streams[0].try_clone().unwrap()).unwrap();
        while !last.read(LINE_MAX).unwrap().contains(&Message::Go(1, Value::Null)) {}
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
