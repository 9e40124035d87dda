//! Which writes bypass the page cache by default.

use rustix::io::Errno;

use super::*;
use crate::Outcome;
use crate::engine::start::PAST_CACHE_MIN;
use crate::options::RequestOptions;
use crate::plan::Reason;
use crate::transfer::SyncMode;

/// The bytes of an outcome that bypassed the page cache.
fn past_cache(outcome: &Outcome) -> u64 {
    let past = outcome.routes.iter().filter(|share| share.reason == Reason::WritePastCache);
    past.map(|share| share.bytes).sum()
}

#[test]
fn large_synced_writes_of_bytes_that_are_not_cached_bypass_the_page_cache() {
    let Some(rig) = Rig::new(RingChoice::Auto) else { return };
    let len = usize::try_from(PAST_CACHE_MIN).unwrap();
    let bytes: Vec<u8> = (0..=250).cycle().take(len + 100).collect();
    let synced = RequestOptions { sync: SyncMode::Data, ..RequestOptions::default() };
    let write = |bytes: &[u8], options: &RequestOptions| {
        let outcome = rig.file.write(bytes).at(777).options(*options).run().unwrap();
        assert!(std::fs::read(rig.file.path()).unwrap()[777..][..bytes.len()] == *bytes);
        outcome
    };
    rig.file.evict().unwrap();
    // All but the edges, which fill no page.
    let past = past_cache(&rig.file.write(&bytes[..]).at(777).options(synced).run().unwrap());
    assert!(past > PAST_CACHE_MIN - 8192 && past < bytes.len() as u64, "{past}");
    // The pages at the ends of the last write are cached, but on the drive.
    assert_eq!(past_cache(&write(&bytes, &synced)), past);
    // The comparison has read the file into the page cache, where its bytes stay.
    assert_eq!(past_cache(&write(&bytes, &synced)), 0);
    rig.file.evict().unwrap();
    assert_eq!(past_cache(&write(&bytes[..len - 1], &synced)), 0, "it is too short");
    rig.file.evict().unwrap();
    assert_eq!(past_cache(&write(&bytes, &RequestOptions::default())), 0, "there is room");
    let past = past_cache(&write(
        &bytes[..10_000],
        &RequestOptions { past_cache: true, ..RequestOptions::default() },
    ));
    assert!(past > 0 && past < 10_000, "{past}");
}

#[test]
fn a_write_whose_o_direct_is_refused_goes_through_the_page_cache() {
    let Some(rig) = Rig::new(RingChoice::Auto) else { return };
    rig.file.handle.refuse_o_direct(Errno::INVAL);
    let outcome = rig.file.write(&rig.bytes[..]).past_cache().run();
    let outcome = outcome.unwrap();
    let [share] = outcome.routes[..] else { panic!("{outcome:?}") };
    assert_eq!((share.reason, share.bytes), (Reason::NoDirectIo, LEN as u64));
    assert!(std::fs::read(rig.file.path()).unwrap() == rig.bytes);
}
