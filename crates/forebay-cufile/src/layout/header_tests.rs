//! Compares our structures and numbers with the vendor's `cufile.h`, for each version available.
//! `cargo xtask test` downloads some and sets a variable to their folder.
//!
//! A C program is compiled against the header. Each row is a C expression and our value for it. A
//! row is skipped if the header lacks its names, but the newest header must have all of them.

use std::fs;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Descriptor, Properties, RawCounters};
use crate::failure::{Answer, KNOWN};
use crate::probe::{FEATURES, SETTINGS, STORAGE, WAYS};
use crate::session::{ALLOW_COMPAT, FORCE_COMPAT};
use crate::simulated_library;
use crate::{Counters, GpuCounters, Moves, Paths};

/// Variable with a folder that contains one folder per version, named by its number.
const FOLDER: &str = "FOREBAY_CUFILE_WHEELS";

/// Stand-in for `cuda.h`, which the header includes for two types.
const CUDA: &str = "typedef int CUresult;\ntypedef struct CUstream_st *CUstream;\n";

/// A C expression, and our value for it.
type Row = (String, i64);

fn number(value: usize) -> i64 {
    i64::try_from(value).expect("a small number")
}

fn size_of_field<T, F>(_: fn(&T) -> &F) -> i64 {
    number(size_of::<F>())
}

/// Rows for the sizes of structures and the offsets and sizes of their fields.
macro_rules! layouts {
    ($($ours:ty as $theirs:literal { $($field:ident: $name:literal),* $(,)? })*) => {
        vec![$(
            (format!("sizeof({})", $theirs), number(size_of::<$ours>())),
            $(
                (
                    format!("offsetof({}, {})", $theirs, $name),
                    number(offset_of!($ours, $field)),
                ),
                (
                    format!("sizeof((({} *)0)->{})", $theirs, $name),
                    size_of_field(|whole: &$ours| &whole.$field),
                ),
            )*
        )*]
    };
}

fn structures() -> Vec<Row> {
    layouts! {
        Answer as "CUfileError_t" { error: "err", cuda: "cu_err" }
        Descriptor as "CUfileDescr_t" { kind: "type", fd: "handle.fd", operations: "fs_ops" }
        Properties as "CUfileDrvProps_t" {
            major: "nvfs.major_version",
            minor: "nvfs.minor_version",
            poll_threshold_kib: "nvfs.poll_thresh_size",
            max_direct_io_kib: "nvfs.max_direct_io_size",
            served: "nvfs.dstatusflags",
            control: "nvfs.dcontrolflags",
            features: "fflags",
            device_cache_kib: "max_device_cache_size",
            per_buffer_kib: "per_buffer_cache_size",
            pinned_kib: "max_device_pinned_mem_size",
            max_batch: "max_batch_io_size",
            batch_timeout_ms: "max_batch_io_timeout_msecs",
        }
    }
}

/// The vendor's names for bits and numbers that we name differently, in our order.
const STORAGE_NAMES: &str = "LUSTRE WEKAFS NFS GPFS NVME NVMEOF SCSI SCALEFLUX_CSD NVMESH BEEGFS \
                             SCATEFS VIRTIOFS PANFS";
const FEATURE_NAMES: &str = "DYN_ROUTING BATCH_IO STREAMS PARALLEL_IO P2P";
const WAY_NAMES: &str = "P2PDMA NVFS DMABUF C2C NVIDIA_PEERMEM";
const SETTING_NAMES: &str = "PROPERTIES_ALLOW_COMPAT_MODE FORCE_COMPAT_MODE USE_PCIP2PDMA \
                             PREFER_IO_URING PROPERTIES_POSIX_IO_MODE";

fn numbers() -> Vec<Row> {
    let mut rows: Vec<Row> = vec![
        ("CU_FILE_HANDLE_TYPE_OPAQUE_FD".into(), Descriptor::OF_FD.into()),
        ("CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE".into(), ALLOW_COMPAT.into()),
        ("CUFILE_PARAM_FORCE_COMPAT_MODE".into(), FORCE_COMPAT.into()),
    ];
    let mut named = |names: &str, form: fn(&str) -> String, numbers: Vec<i64>| {
        let names: Vec<&str> = names.split_whitespace().collect();
        assert_eq!(names.len(), numbers.len(), "{names:?}");
        rows.extend(names.into_iter().map(form).zip(numbers));
    };
    let bits = |all: &[(u32, &str)]| all.iter().map(|(bit, _)| i64::from(*bit)).collect();
    named(STORAGE_NAMES, |name| format!("CU_FILE_{name}_SUPPORTED"), bits(&STORAGE));
    named(FEATURE_NAMES, |name| format!("CU_FILE_{name}_SUPPORTED"), bits(&FEATURES));
    named(WAY_NAMES, |name| format!("CUFILE_{name}"), bits(&WAYS));
    let settings = SETTINGS.iter().map(|(number, _)| i64::from(*number)).collect();
    named(SETTING_NAMES, |name| format!("CUFILE_PARAM_{name}"), settings);
    rows
}

/// The header of a version.
struct Header {
    version: String,
    /// The version number as the library reports it.
    number: u32,
    path: PathBuf,
    text: String,
}

impl Header {
    /// All available headers, oldest first; reports a skipped test if there are none.
    fn all() -> Vec<Self> {
        let folder = std::env::var_os(FOLDER).map(PathBuf::from);
        let entries = folder.as_deref().and_then(|folder| fs::read_dir(folder).ok());
        let all = entries.into_iter().flatten().flatten();
        let mut all: Vec<Self> = all.filter_map(|entry| Self::of(&entry.path())).collect();
        all.sort_by_key(|header| header.number);
        if all.is_empty() {
            println!("skipped: cuFile's header: `cargo xtask test` fetches it, where it can");
        }
        all
    }

    fn of(folder: &Path) -> Option<Self> {
        let version = folder.file_name()?.to_str()?.to_owned();
        let mut words = version.split('.').map_while(|word| word.parse::<u32>().ok());
        let number = words.next()? * 1000 + words.next()? * 10;
        let text = fs::read_to_string(folder.join("cufile.h")).ok()?;
        Some(Self { version, number, path: folder.into(), text })
    }

    /// Whether it has all names of an expression.
    fn has(&self, expression: &str) -> bool {
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let is_theirs = |name: &&str| {
            name.starts_with(char::is_alphabetic) && !matches!(*name, "sizeof" | "offsetof")
        };
        let mut names = expression.split(|letter| !is_name(letter)).filter(is_theirs);
        names.all(|name| self.text.split(|letter| !is_name(letter)).any(|word| word == name))
    }

    /// Compiles a program against it and returns its output; `None` if there is no compiler.
    fn run(&self, program: &str) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cuda.h"), CUDA).unwrap();
        let out = folder.path().join("program");
        let folders = [folder.path(), &self.path].map(|path| format!("-I{}", path.display()));
        let built = simulated_library::build(folder.path(), program, &folders, &out);
        built.map_err(|reason| println!("skipped: {reason}")).ok()?;
        let output = Command::new(&out).output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", self.version);
        Some(output.stdout)
    }
}

const BEGIN: &str =
    "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include \"cufile.h\"\n";

#[test]
fn structures_and_numbers_are_those_of_the_header() {
    let headers = Header::all();
    for header in &headers {
        let all = [structures(), numbers()].concat();
        let is_newest = header.version == headers[headers.len() - 1].version;
        let rows: Vec<&Row> = all.iter().filter(|(name, _)| header.has(name)).collect();
        assert!(!is_newest || rows.len() == all.len(), "{}: {rows:?}", header.version);
        assert!(rows.len() > 40, "{}: {}", header.version, rows.len());
        let line = |(name, _): &&Row| format!("printf(\"%lld\\n\", (long long)({name}));\n");
        let lines: String = rows.iter().map(line).collect();
        let Some(printed) = header.run(&format!("{BEGIN}int main(void) {{ {lines} }}\n")) else {
            return;
        };
        let printed = String::from_utf8(printed).unwrap();
        let theirs: Vec<i64> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(theirs.len(), rows.len());
        let differ = rows.iter().zip(theirs).filter(|((_, ours), theirs)| ours != theirs);
        let differ: Vec<_> = differ.collect();
        assert!(differ.is_empty(), "{}: ours, theirs: {differ:#?}", header.version);
    }
}

/// The end marker of the numbers, which moves with them.
const LAST: &str = "IO_MAX_ERROR";

#[test]
fn errors_have_the_numbers_and_names_of_the_header() {
    let headers = Header::all();
    let program = "#define CUFILE_OP(code, name, text) printf(\"%d %s\\n\", code, #name);\n\
                   int main(void) { CUFILEOP_STATUS_ENTRIES }\n";
    for header in &headers {
        let Some(printed) = header.run(&format!("{BEGIN}#undef CUFILE_OP\n{program}")) else {
            return;
        };
        let printed = String::from_utf8(printed).unwrap();
        let theirs: Vec<(i32, &str)> = printed
            .lines()
            .filter_map(|line| line.split_once(" CU_FILE_"))
            .map(|(code, name)| (code.parse().unwrap(), name))
            .filter(|(code, name)| *code != 0 && *name != LAST)
            .collect();
        assert!(theirs.len() > 30, "{}: {theirs:?}", header.version);
        let ours = || KNOWN.iter().map(|known| (known.code, known.name));
        for error in &theirs {
            assert!(ours().any(|known| known == *error), "{}: {error:?}", header.version);
        }
        if header.version == headers[headers.len() - 1].version {
            assert!(ours().filter(|(_, name)| *name != LAST).eq(theirs.iter().copied()));
        }
    }
}

/// The library of the tests mimics the real one, so it must compile against the header.
#[test]
fn the_library_that_tests_load_has_the_functions_of_the_header() {
    for header in Header::all() {
        let begin = format!("#define AS_OF {}\n#define HEADER \"cufile.h\"\n", header.number);
        let program =
            format!("{begin}{}\nint main(void) {{ return 0; }}\n", simulated_library::SOURCE);
        assert_eq!(header.run(&program).unwrap_or_default(), b"");
    }
}

/// Fills the counters through the field names of the header.
const COUNTS: &str = "\
#include <string.h>
static CUfileStatsLevel3_t all;
int main(void) {
  CUfileStatsLevel1_t *sum = &all.detailed.basic;
  CUfilePerGpuStats_t *gpu = &all.per_gpu_stats[1];
  all.num_gpus = 2;
  sum->batch_submit_ops.ok = 1;
  sum->batch_nvfs_submit_ops.ok = 2;
  sum->batch_p2p_submit_ops.ok = 3;
  sum->batch_aio_submit_ops.ok = 10;
  sum->batch_iouring_submit_ops.ok = 20;
  sum->batch_mixed_io_submit_ops.ok = 30;
  sum->batch_read_bytes = 100;
  sum->batch_write_bytes = 1000;
  memset(gpu->uuid, 7, sizeof gpu->uuid);
  gpu->read_bytes = 11;
  gpu->n_total_reads = 12;
  gpu->n_p2p_reads = 13;
  gpu->n_nvfs_reads = 14;
  gpu->n_posix_reads = 15;
  gpu->n_unaligned_reads = 16;
  gpu->writes_bytes = 21;
  gpu->n_total_writes = 22;
  gpu->n_p2p_writes = 23;
  gpu->n_nvfs_writes = 24;
  gpu->n_posix_writes = 25;
  fwrite(&all, sizeof all, 1, stdout);
}
";

#[test]
fn counters_lie_where_the_header_has_them() {
    for header in Header::all() {
        if !header.has("CUfileStatsLevel3_t") {
            assert!(Counters::parse(header.number, 3, &[0; 8192]).is_err(), "{}", header.version);
            continue;
        }
        let Some(bytes) = header.run(&format!("{BEGIN}{COUNTS}")) else { return };
        let counted = Counters::parse(header.number, 3, &bytes);
        let counted = counted.unwrap_or_else(|why| panic!("{}: {why}", header.version));
        let paths = |p2pdma, nvidia_fs, posix| Paths { p2pdma, nvidia_fs, posix };
        let second = GpuCounters {
            uuid: [7; 16],
            reads: Moves { bytes: 11, operations: 12, by: paths(13, 14, 15) },
            writes: Moves { bytes: 21, operations: 22, by: paths(23, 24, 25) },
            unaligned_reads: 16,
        };
        assert_eq!(counted.gpus, [GpuCounters::default(), second], "{}", header.version);
        assert_eq!((counted.batches, counted.batches_by), (1, paths(3, 2, 60)));
        let batched = (header.number < 1190).then_some(1100);
        assert_eq!(counted.batch_bytes, batched, "{}", header.version);
        assert!(bytes.len() <= size_of::<RawCounters>(), "{}", header.version);
        // It is exactly as long as the header says.
        assert!(Counters::parse(header.number, 3, &bytes[..bytes.len() - 1]).is_err());
    }
}
