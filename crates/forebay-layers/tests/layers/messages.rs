//! What a stream's errors say: which layer, what went wrong, and what to do.

#![expect(unsafe_code, reason = "as a caller would")]

use forebay::gpu::{CallerStream, Device};
use forebay::{Error, Operation};
use forebay_layers::{LayerStream, Order, StreamOptions};

use crate::rig::{Rig, ordered};

const LEN: usize = 1 << 20;

/// An error with what lies behind it.
fn all(error: &Error) -> String {
    let mut text = error.to_string();
    let mut behind = std::error::Error::source(error);
    while let Some(cause) = behind {
        text = format!("{text}: {cause}");
        behind = cause.source();
    }
    text
}

#[test]
fn two_layers_are_enough_without_memory_for_three() {
    let rig = Rig::with("sim:memory=2600K,bandwidth=4GB/s");
    let model = rig.model(4, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    assert_eq!(stream.buffers(), 2);
    let seen = rig.pass(&stream, std::time::Duration::ZERO).expect("a pass");
    model.check_all(&seen, &[0, 1, 2, 3]);
    drop(stream);
    // Nor is less used than was requested.
    let budget = Some(3 * model.layers[0].len());
    let refused = |options: StreamOptions| {
        let stream = LayerStream::new(&rig.engine, &rig.gpu(), &model.layers, options);
        stream.expect_err("there is no room")
    };
    let error = refused(ordered(Order::Forward, budget));
    assert!(matches!(&error, Error::Device { operation: Operation::GiveLayers, .. }), "{error:?}");
    assert!(error.to_string().starts_with("cannot give layers 3 MiB"), "{error}");
    let hint = error.hint().expect("a remedy");
    assert!(hint.contains("a smaller `gpu_budget`"), "{hint}");
    // Others have some of it.
    let others = rig.engine.allocate(rig.device.id(), 1 << 20).expect("memory");
    let error = refused(ordered(Order::Forward, None));
    assert!(error.to_string().starts_with("cannot give layers 2 MiB"), "{error}");
    drop(others);
}

#[test]
fn a_released_layer_is_named_in_errors() {
    let rig = Rig::new();
    let model = rig.model(3, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    // SAFETY: the stream is alive.
    let release = || unsafe { layer.release(rig.compute()) };
    release().expect("it is held");
    let error = all(&release().expect_err("it was released"));
    let expected = "cannot release the layer `layer 0`: it was released already, explicitly \
                    or by taking the next layer";
    assert_eq!(error, expected);
    for error in [layer.keep(), layer.memory().map(drop), layer.compute().map(drop)] {
        let error = error.expect_err("it was released");
        assert!(matches!(&error, Error::Layer { layer, .. } if layer == "layer 0"), "{error:?}");
        assert!(all(&error).starts_with("cannot use the layer `layer 0`: "), "{}", all(&error));
    }
}

#[test]
fn a_foreign_stream_is_reported_as_the_callers() {
    let rig = Rig::new();
    let model = rig.model(3, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let says = |error: Error| {
        let text = all(&error);
        let begins = "the compute stream 12345 belongs to another GPU than sim:0, or was destroyed";
        assert!(text.contains(begins), "{text}");
    };
    // SAFETY: the simulated GPU looks whether there is such a stream.
    says(unsafe { stream.next(CallerStream(12345)) }.expect_err("no such stream"));
    let layer = rig.next(&stream).expect("it can be read").expect("a layer");
    // SAFETY: as above.
    says(unsafe { layer.release(CallerStream(12345)) }.expect_err("no such stream"));
    assert!(layer.memory().is_ok(), "it stays held");
}

#[test]
fn unknown_facts_of_a_failed_copy_are_not_reported() {
    let mut failed = 0;
    for seed in 0..12 {
        let rig = Rig::with(&format!("sim:copy-faults=0.5,seed={seed}"));
        let model = rig.model(4, LEN);
        let options = ordered(Order::Forward, Some(2 * model.layers[0].len()));
        let Ok(stream) = LayerStream::new(&rig.engine, &rig.gpu(), &model.layers, options) else {
            continue;
        };
        for _ in 0..8 {
            let Err(error) = rig.next(&stream) else { continue };
            let text = all(&error);
            assert!(text.starts_with("cannot copy") && !text.contains(" 0 B"), "{text}");
            assert!(text.contains("`layer ") && text.ends_with("` was to be taken next"), "{text}");
            failed += 1;
        }
    }
    assert!(failed > 0, "no copy failed");
    let mut ended = 0;
    for after in 1..12 {
        let rig = Rig::with(&format!("sim:lost-after={after}"));
        let model = rig.model(4, LEN);
        let options = ordered(Order::Forward, None);
        let Ok(stream) = LayerStream::new(&rig.engine, &rig.gpu(), &model.layers, options) else {
            continue;
        };
        let _ = rig.next(&stream);
        let Err(error) = stream.close() else { continue };
        assert_eq!(error.to_string(), "a copy on sim:0 failed and may not be over");
        ended += 1;
    }
    assert!(ended > 0, "no stream was open when the GPU was lost");
}

#[test]
fn an_unannounced_order_is_named() {
    let rig = Rig::new();
    let model = rig.model(2, LEN);
    let stream = rig.stream(&model, ordered(Order::Forward, None));
    let error = stream.prefetch(&[0]).expect_err("the order is known").to_string();
    assert!(error.ends_with("with the order `appended`"), "{error}");
}
