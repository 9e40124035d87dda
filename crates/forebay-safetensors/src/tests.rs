//! Headers and indexes: what is read, and what is refused.

use proptest::prelude::*;

use crate::{Dtype, Error, Header, Index};

fn parsed(text: &str, data: u64) -> Result<Header, String> {
    let size = 8 + text.len() as u64 + data;
    Header::parse(text.as_bytes(), size).map_err(|error| match error {
        Error::Invalid(why) => why,
        Error::Read(error) => panic!("nothing is read: {error}"),
    })
}

#[test]
fn a_header_has_its_tensors_in_the_order_of_their_bytes() {
    let text = r#"{"__metadata__":{"a":"b"},
        "second":{"dtype":"F32","shape":[2,1],"data_offsets":[3,11],"more":[{"x":1.5}]},
        "first":{"data_offsets":[0,3],"dtype":"U8","shape":[3]},
        "none\n":{"dtype":"F4","shape":[0,70000],"data_offsets":[11,11]}}"#;
    let header = parsed(text, 11).unwrap();
    let names: Vec<_> = header.names().collect();
    assert_eq!(names, ["first", "second", "none\n"]);
    let second = header.get("second").unwrap();
    assert_eq!((second.dtype, second.shape, second.nbytes), (Dtype::F32, vec![2, 1], 8));
    assert_eq!(second.offset, 8 + text.len() as u64 + 3);
    assert_eq!(header.get("none\n").unwrap().shape, [0, 70000]);
    assert!(header.get("other").is_none() && header.place("first") == Some(0));
    assert_eq!(header.metadata().unwrap().collect::<Vec<_>>(), [("a", "b")]);
    assert!(parsed("{}", 0).unwrap().metadata().is_none());
}

#[test]
fn a_broken_header_is_refused_with_the_reason() {
    let one = r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let cases = [
        ("[]".to_owned(), "not a JSON object"),
        (" {}".to_owned(), "not a JSON object"),
        ("{} x".to_owned(), "not JSON: trailing"),
        (format!("{{{one},{one}}}"), "the name `a` twice"),
        (format!("{{{one},\"b\":7}}"), "`b` is not a JSON object"),
        (one.replace("U8", "U9"), "the type `U9`"),
        (one.replace("[1]", "[-1]"), "an invalid shape"),
        (one.replace("[1]", "[1.0]"), "an invalid shape"),
        (one.replace("[1]", "[4294967296,4294967296,0]"), "more than 2**64 bits"),
        (one.replace("[0,1]", "[0,1,1]"), "invalid `data_offsets`"),
        (one.replace("[0,1]", "[1,0]"), "invalid `data_offsets`"),
        (one.replace("[0,1]", "[1,2]"), "gap before its tensor `a`"),
        (one.replace("\"shape\"", "\"dtype\""), "has an invalid `dtype`"),
        (one.replace("\"shape\":[1],", ""), "has no `shape`"),
        (one.replace("[1]", "[2]"), "has 1 bytes, but `U8` of shape [2] takes 2"),
        (format!("{one},\"__metadata__\":null,\"__metadata__\":{{}}"), "`__metadata__` twice"),
        (format!("{one},\"__metadata__\":{{\"a\":1}}"), "not an object of strings"),
        (format!("{one},\"__metadata__\":{{\"a\":\"\",\"a\":\"\"}}"), "the key `a` twice"),
    ];
    for (text, why) in cases {
        let text = if text.starts_with('"') { format!("{{{text}}}") } else { text };
        let refused = parsed(&text, 1).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn an_index_has_the_tensors_of_each_file() {
    let text = br#"{"metadata":{"x":[1]},"weight_map":{"a":"2","b":"1","c":"2"}}"#;
    let index = Index::parse(text).unwrap();
    assert_eq!(index.files(), ["2", "1"]);
    assert_eq!((index.len(0), index.len(1), index.len(2)), (2, 1, 0));
    assert_eq!(
        (index.name(0, 0), index.name(0, 1), index.name(0, 2)),
        (Some("a"), Some("c"), None)
    );
    assert_eq!((index.name(1, 0), index.name(2, 0)), (Some("b"), None));
    assert_eq!((index.file_of("c"), index.file_of("d")), (Ok(Some(0)), Ok(None)));
    for (text, why) in [
        ("{}", "no `weight_map`"),
        (r#"{"weight_map":{"a":1}}"#, "does not say which file"),
        (r#"{"weight_map":{},"weight_map":{}}"#, "twice"),
        ("{", "not JSON"),
    ] {
        let refused = Index::parse(text.as_bytes()).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
    let twice = Index::parse(br#"{"weight_map":{"a":"1","b":"1","a":"2"}}"#).unwrap();
    assert!(twice.file_of("a").unwrap_err().contains("`a` twice"));
}

#[test]
fn a_file_is_read_by_the_engine() {
    let text = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    let content = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), b"xy"].concat();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &content).unwrap();
    let engine = forebay::Engine::new(forebay::Options::default()).unwrap();
    let header = Header::read(&engine.open(file.path()).unwrap()).unwrap();
    assert_eq!(header.get("a").unwrap().offset, content.len() as u64 - 2);
    std::fs::write(file.path(), &content[..20]).unwrap();
    let cut = Header::read(&engine.open(file.path()).unwrap());
    assert!(matches!(cut, Err(Error::Invalid(why)) if why.contains("but the file has 20")));
    std::fs::write(file.path(), b"abc").unwrap();
    assert!(Header::read(&engine.open(file.path()).unwrap()).is_err());
}

proptest! {
    #[test]
    fn a_written_header_is_read_back(tensors in proptest::collection::btree_map(
        "\\PC{0,6}", (0_usize..22, proptest::collection::vec(0_u64..300, 0..4)), 0..8,
    )) {
        let mut end = 0;
        let mut header = serde_json::Map::new();
        let mut expected = Vec::new();
        for (name, (dtype, shape)) in tensors.into_iter().filter(|one| one.0 != crate::METADATA) {
            let dtype = Dtype::ALL[dtype];
            let bits = dtype.bits() * shape.iter().product::<u64>();
            prop_assume!(bits.is_multiple_of(8));
            let about = serde_json::json!({
                "dtype": dtype.name(), "shape": shape, "data_offsets": [end, end + bits / 8],
            });
            end += bits / 8;
            header.insert(name.clone(), about);
            expected.push((name, dtype, shape, bits / 8));
        }
        let text = serde_json::Value::Object(header).to_string();
        let found = parsed(&text, end).unwrap();
        for (name, dtype, shape, nbytes) in expected {
            let tensor = found.get(&name).unwrap();
            prop_assert_eq!((tensor.name, tensor.dtype), (name.as_str(), dtype));
            prop_assert_eq!((&tensor.shape, tensor.nbytes), (&shape, nbytes));
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Header::parse(&text, 300);
        let _ = Index::parse(&text);
    }
}
