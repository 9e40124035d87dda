//! Whether the result of a transfer says why its bytes did not go straight.

use forebay::{OpenOptions, Outcome, Piece, Reason, RequestOptions, Route};

use super::lab::{skip, watchdog::Watchdog};
use super::{LEN, Rig, bytes_by, direct_only};

/// Whole units of the file.
const BODY: usize = 4 << 20;

fn why(outcome: &Outcome) -> Option<&str> {
    outcome.not_direct.as_deref()
}

/// Whether the file may be read with O_DIRECT.
fn can_go_straight(rig: &Rig) -> bool {
    let reason = rig.cold().no_direct_io().map(str::to_owned);
    reason.iter().for_each(|reason| skip(format!("bytes that go straight: {reason}")));
    reason.is_none()
}

/// Reads, writes and pieces that go through slots, small ones among them, and what each says.
fn by_slots(rig: &Rig) -> [Outcome; 7] {
    let open = rig.engine.open_with(rig.path(), &OpenOptions::writing()).expect("it opens");
    let mut buffer = rig.buffer(2 << 20);
    let mut small = rig.buffer(4096);
    let (resident, crooked, small_read) = rig.in_memory(&open, || {
        let resident = open.read(&mut buffer).run().expect("a read");
        let crooked = open.read(&mut buffer).at(512).run().expect("a read");
        (resident, crooked, open.read(&mut small).run().expect("a small read"))
    });
    let small_written = open.write(&small).run().expect("a small write");
    let written = open.write(&buffer).run().expect("a write");
    let piece = [Piece::new(&open, 0, 1 << 20, 0)];
    let mut many = |options: &RequestOptions| {
        let targets = [&mut buffer];
        rig.engine.read_many(&piece, targets).options(*options).run().expect("a piece").whole
    };
    let pieces = many(&RequestOptions::default());
    let chosen = many(&RequestOptions { route: Some(Route::Cached), ..RequestOptions::default() });
    [resident, crooked, small_read, small_written, written, pieces, chosen]
}

#[test]
fn bytes_through_slots_have_a_reason() {
    let _watchdog = Watchdog::start();
    let cached = Some("in the page cache");
    let unasked = Some("only if the route is required");
    let pieces = Some("pieces of one call");
    let offset = Some("memory address and file offset differ modulo 4096");
    let refused = Some("5008");
    for (play, printed) in [
        ("sim", [None; 7]),
        ("sim:cufile", [cached, offset, cached, unasked, unasked, pieces, None]),
        ("sim:cufile=refuse", [refused, refused, cached, unasked, unasked, pieces, None]),
    ] {
        let rig = Rig::new(play);
        if !can_go_straight(&rig) {
            return;
        }
        for (number, (outcome, part)) in by_slots(&rig).iter().zip(printed).enumerate() {
            let reported = why(outcome);
            let is_so = match part {
                None => reported.is_none(),
                Some(part) => reported.is_some_and(|reported| reported.contains(part)),
            };
            assert!(is_so, "{play}, {number}: {part:?}: {outcome:?}");
        }
    }
}

#[test]
fn direct_bytes_and_those_of_the_host_have_no_reason() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile");
    if !can_go_straight(&rig) {
        return;
    }
    let file = rig.cold();
    // Its edges do not, which the routes say.
    for len in [LEN, BODY] {
        let outcome = rig.read(&file, (0, len, 0), &direct_only()).expect("a read");
        assert!(bytes_by(&outcome, Route::Direct) > 0 && why(&outcome).is_none(), "{outcome:?}");
    }
    let (_, outcome) = file.read_to_end(None).run().expect("a read");
    assert_eq!(why(&outcome), None, "{outcome:?}");
    // Another route was required.
    for route in [Route::Staged, Route::Cached] {
        let outcome = rig.read(
            &file,
            (0, BODY, 0),
            &RequestOptions { route: Some(route), ..RequestOptions::default() },
        );
        assert_eq!(why(&outcome.expect("a read")), None);
    }
}

#[test]
fn a_path_that_breaks_in_the_middle_says_what_the_library_did() {
    let _watchdog = Watchdog::start();
    let rig = Rig::new("sim:cufile=fail");
    if !can_go_straight(&rig) {
        return;
    }
    let file = rig.cold();
    let start = || file.read(rig.buffer(LEN)).exact().start();
    let transfer = start().expect("a start");
    while !transfer.is_done() {
        std::thread::yield_now();
    }
    let so_far = transfer.not_direct();
    let outcome = transfer.wait().0.expect("a read");
    let failed = |share: &forebay::RouteShare| share.reason == Reason::PeerFailed;
    if !outcome.routes.iter().any(failed) {
        return skip("a path that breaks: nothing leaves the page cache here");
    }
    assert!(why(&outcome).is_some_and(|why| why.contains("IO_ERROR (5044)")), "{outcome:?}");
    assert_eq!(so_far, outcome.not_direct);
    // From then on it is why nothing does.
    let again = start().expect("a start").wait().0.expect("a read");
    assert_eq!(bytes_by(&again, Route::Direct), 0, "{again:?}");
    assert!(why(&again).is_some_and(|why| why.contains("IO_ERROR (5044)")), "{again:?}");
}
