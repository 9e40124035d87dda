//! The import of tables.

use proptest::prelude::*;

use super::*;

const TABLE: &str = "\
Block,BW (MiB/s),IOPS,lat_p99_us,mode,Threads,file
64K,1000.5,16008,250.5,randread,4,/data/a
1M,2000,2000,,write,4,\"/data/b, c\"
";

fn of(text: &str, map: &str) -> Result<Contents, String> {
    let map: Map = map.parse().unwrap();
    let mut contents = Contents::new("x", &map.values);
    parse(text, &map, &mut contents).map(|()| contents)
}

const MAP: &str = "block-size=Block,throughput=BW (MiB/s),iops=iops,p99=lat_p99_us:us,\
                   direction=mode,threads=Threads,path=file";

#[test]
fn columns_are_taken_in_their_units() {
    let contents = of(TABLE, MAP).unwrap();
    let [first, second] = contents.found.as_slice() else { panic!("{contents:?}") };
    let (point, measured) = (&first.0.point, first.0.measured.as_ref().unwrap());
    assert_eq!((point.method.as_str(), point.read_percent), ("x", 100));
    assert_eq!((point.pattern.as_str(), point.request_size), ("random", 65536));
    assert_eq!((point.threads, point.path.as_str(), point.depth), (4, "/data/a", 0));
    assert!((measured.bytes_per_second - 1000.5 * 1_048_576.0).abs() < 1e-3);
    assert_eq!(measured.requests_per_second, Some(16008.0));
    assert_eq!(measured.latency.unwrap().p99_ns, Some(250_500));
    assert_eq!(
        (measured.latency.unwrap().p50_ns, measured.bytes, measured.seconds),
        (None, None, None)
    );
    assert_eq!((second.0.point.read_percent, second.0.point.path.as_str()), (0, "/data/b, c"));
    assert_eq!(second.0.measured.as_ref().unwrap().latency, None);
    assert_eq!(contents.warnings(), Vec::<String>::new());
    // The same table as written by a spreadsheet with decimal commas.
    let other = "Block;BW (MiB/s);mode\n64K;1000,5;read\n";
    let contents = of(other, "block-size=Block,throughput=BW (MiB/s),direction=mode");
    let rate = contents.unwrap().found[0].0.measured.as_ref().unwrap().bytes_per_second;
    assert!((rate - 1000.5 * 1_048_576.0).abs() < 1e-3);
}

#[test]
fn words_of_other_columns_are_settings() {
    let table = "size,MB/s,mode,note\n4K,10,cold,a\n4K,20,resident,7\n";
    let settings = |map: &str| {
        let contents =
            of(table, &format!("block-size=size,throughput=MB/s:MB/s,direction:=read{map}"));
        contents.unwrap().found.remove(0).1.into_iter().collect::<Vec<_>>()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(settings(""), [pair("mode", "cold"), pair("note", "a")]);
    assert_eq!(settings(",cache=mode"), [pair("note", "a")]);
}

#[test]
fn a_column_that_only_resembles_a_known_one_costs_no_row() {
    let table = "rw,block_size,BW (MiB/s),lat_avg\nread,4K,10,7\n";
    let contents = of(table, "cache:=cold").unwrap();
    assert_eq!(contents.found[0].0.point.request_size, 4096);
    let measured = contents.found[0].0.measured.as_ref().unwrap();
    assert_eq!((measured.bytes_per_second, measured.latency), (10_485_760.0, None));
}

#[test]
fn missing_columns_and_unclear_values_are_named() {
    let why = |text: &str, map: &str| of(text, &format!("{map},direction:=read")).unwrap_err();
    assert_eq!(
        why(TABLE, "throughput=BW"),
        "it has no column `BW`: perhaps `BW (MiB/s)` was meant; it has `Block`, `BW (MiB/s)`, \
         `IOPS`, `lat_p99_us`, `mode`, `Threads`, `file`"
    );
    assert!(why(TABLE, "throughput=speed").contains("no column `speed`; it has `Block`"));
    assert_eq!(why("", "throughput=a"), "it is empty");
    assert!(why("a,b,A,a\n", "throughput=a").contains("2 of its columns are called `a`"));
    let wide = format!("{}\n", ["a"; 50].join(","));
    assert!(why(&wide, "throughput=b").ends_with("and 20 more"));
    let sized = "bs (sectors),BW\n8,1\n";
    assert!(
        why(sized, "block-size=bs (sectors),throughput=BW:GB/s").contains("is not a known unit")
    );
    for (table, map) in [
        ("bs_kb,BW\n64,1\n", "block-size=bs_kb"),
        ("size,kIOPS\n64K,1\n", "block-size=size,iops=kIOPS"),
    ] {
        assert!(why(table, map).contains("give the unit after the column"), "{table}");
    }
    let map = "block-size=\"bs (sectors)\":KiB,throughput=BW:GB/s,direction:=read";
    let found = of(sized, map);
    assert_eq!(found.unwrap().found[0].0.point.request_size, 8192);
    let warnings = |text: &str| {
        let contents = of(text, "throughput=a,direction=b,depth=c").unwrap();
        assert_eq!(contents.found, []);
        contents.warnings().join("\n")
    };
    let rows = "1 GB/s,read,1.5e300x\n-1 GB/s,read,1\n1,read,1\n,read,1\n1 GB/s,,1\n1 GB/s,up,1\n\
                1,2\n\"1,234 GB/s\",read,1\n1e300 GB/s,read,1\n";
    insta::assert_snapshot!(warnings(&format!("a,b,c\n{rows}")).replace(" left out: ", "\n  "), @"
    line 2:
      `c` is `1.5e300x`: its unit is unknown: use k or M
    line 3:
      `a` is `-1 GB/s`: it is not a number of 0 or more
    line 4:
      `a` is `1`: it has no unit: use MiB/s, GiB/s, MB/s, GB/s, Gbit/s and so on
    line 5:
      it has no throughput, and no numbers that give one
    line 6:
      the direction is unknown: add `--columns direction:=read`, or name a column
    line 7:
      `direction` takes `read`, `write`, or `mixed:70` for 70 % reads
    line 8:
      2 fields below 3 headings
    line 9:
      `a` is `1,234 GB/s`: its comma is ambiguous: write numbers without it
    line 10:
      `a` is `1e300 GB/s`: its unit is unknown: use MiB/s, GiB/s, MB/s, GB/s, Gbit/s and so on
    ");
}

#[test]
fn headings_of_elbencho_have_their_units() {
    let text = "block size,operation,time ms [last],entries [last],IOPS [last],MiB/s [last],\
                IO lat us [avg]\n131072,MKDIRS,11,5,,,\n131072,READ,12,128,10660,1333,70\n";
    let map = "block-size=block size,direction=operation,seconds=time ms [last]:ms,\
               requests=entries [last],iops=IOPS [last],throughput=MiB/s [last],\
               mean=IO lat us [avg]";
    let contents = of(text, map).unwrap();
    let [found] = contents.found.as_slice() else { panic!("{contents:?}") };
    let measured = found.0.measured.as_ref().unwrap();
    assert_eq!(measured.bytes_per_second, 1333.0 * 1_048_576.0);
    assert_eq!((measured.requests, measured.requests_per_second), (Some(128), Some(10660.0)));
    assert_eq!(measured.seconds, Some(0.012));
    assert_eq!(measured.latency.as_ref().unwrap().mean_ns, Some(70e3));
}

#[test]
fn a_column_may_name_the_method_and_common_headings_need_no_map() {
    let text = "tool\tGB/s\trw\na\t1\tread\n\t2\twrite\n";
    let read = |text: &str| {
        let mut contents = Contents::new("x", &Map::default().values);
        parse(text, &Map::default(), &mut contents).map(|()| contents)
    };
    let found = read(text).unwrap().found;
    let methods: Vec<&str> = found.iter().map(|(sample, _)| sample.point.method.as_str()).collect();
    assert_eq!((methods, found[1].0.point.read_percent), (vec!["a", "x"], 0));
    let why = read("a;b\n1;2\n").unwrap_err();
    assert_eq!(why, "none of its columns is known: `a`, `b`");
}

#[test]
fn settings_of_elbencho_separate_points() {
    let head = "label,hosts,threads,file size,block size,direct IO,random,operation,MiB/s [last]\n";
    let base = "a 1,1,8,1048576,4096,1,0,READ,900\n";
    let points = |other: &str| {
        let mut contents = Contents::new("elbencho", &Map::default().values);
        parse(&format!("{head}{base}{other}\n"), &Map::default(), &mut contents).unwrap();
        let records = contents.records(std::path::Path::new("x"));
        let samples = records.into_iter().filter_map(|record| match record {
            forebay_measure::results::Record::Sample(sample) => Some(*sample),
            _ => None,
        });
        samples.collect::<Vec<_>>()
    };
    for other in [
        "a 1,1,8,1048576,4096,1,1,READ,90",
        "a 1,1,8,1048576,4096,0,0,READ,90",
        "a 1,2,8,1048576,4096,1,0,READ,90",
        "a 1,1,8,4096,4096,1,0,READ,90",
        "a 2,1,8,1048576,4096,1,0,READ,90",
        "a 1,1,8,1048576,4096,1,0,RWMIX75,90",
    ] {
        let found = points(other);
        assert_eq!(found.iter().map(|one| one.repeat).collect::<Vec<_>>(), [0, 0], "{other}");
    }
    let found = points("a 1,2,8,1048576,4096,1,1,RWMIX75,90");
    let point = &found[1].point;
    assert_eq!((point.threads, point.pattern.as_str(), point.read_percent), (16, "random", 75));
    assert_eq!(found[0].point.cache.map(|cache| cache.name()), Some("cold"));
    let again = points("a 1,1,8,1048576,4096,1,0,READ,90");
    assert_eq!(again.iter().map(|one| one.repeat).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn titles_are_passed_over_and_columns_left_out_are_named() {
    for before in ["# node: a\n", "A storage test, of today\n\n", "a;b\n"] {
        let text = format!("{before}GB/s,qd,level,score,rw\n1,4,7,0.5,read\n2,4,8,0.7,read\n");
        let mut contents = Contents::new("x", &Map::default().values);
        parse(&text, &Map::default(), &mut contents).unwrap();
        let depths: Vec<u32> = contents.found.iter().map(|one| one.0.point.depth).collect();
        assert_eq!((depths, contents.found[1].1["level"].as_str()), (vec![4, 4], "8"), "{text}");
        assert!(contents.warnings()[0].ends_with("are left out: `score`"), "{contents:?}");
    }
    let mut contents = Contents::new("x", &Map::default().values);
    let why = parse("bandwidth_gb_s,rw\n1,read\n", &Map::default(), &mut contents).unwrap_err();
    assert_eq!(why, "none of its columns gives a throughput: `bandwidth_gb_s`, `rw`");
}

#[test]
fn fields_may_be_quoted_and_rows_empty() {
    for delimiter in [",", ";", "\t"] {
        let text = "a,b c,d\r\n1,,3\n\n,,\n4,5,6".replace(',', delimiter);
        let lines: Vec<u64> = rows(&text).unwrap().iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 5], "{delimiter}");
    }
    let found = rows("\"a;b\",\"say \"\"x\"\"\"\n\"two\nlines\",1\n2,in \"the\" middle\n").unwrap();
    assert_eq!(found[0].1, ["a;b", "say \"x\""]);
    assert_eq!(found[1], (2, vec!["two\nlines".into(), "1".into()]));
    assert_eq!(found[2], (4, vec!["2".into(), "in \"the\" middle".into()]));
    assert!(rows(&",".repeat(FIELDS_MAX + 1)).unwrap_err().contains("fields"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_ends_the_command(text: String, cells in "[0-9a-zA-Z.,;/\"\n -]{0,80}") {
        let map = "throughput=a:GB/s,block-size=b,direction=c,cache=d";
        let _ = of(&text, map);
        let _ = of(&format!("a,b,c,d\n{cells}\n{text}"), map);
    }
}
