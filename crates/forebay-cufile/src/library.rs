//! Finds `libcufile` and loads it.
//!
//! It may come from a CUDA toolkit, a Linux distribution, or the vendor's Python wheels. The first
//! one that loads is used, in this order: the configured path, the dynamic loader's choice,
//! toolkits in their usual location from the newest, and wheels in the virtual environment.

#![expect(unsafe_code, reason = "loads a library")]

use std::ffi::{c_int, c_long, c_void};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use libloading::Library;

use super::failure::Answer;
use super::layout::{Descriptor, Properties};

/// Its name, which contains only the ABI number.
const NAME: &str = "libcufile.so.0";

/// The oldest supported version, and the first one with a different ABI.
const VERSIONS: std::ops::Range<c_int> = 1110..2000;

/// Where toolkits are installed, and where wheels put the library in a package folder.
const TOOLKITS: &str = "/usr/local";
const IN_TOOLKIT: [&str; 2] = ["lib64", "targets/x86_64-linux/lib"];
const IN_WHEELS: [&str; 3] = ["nvidia/cu13/lib", "nvidia/cu12/lib", "nvidia/cufile/lib"];

/// Maximum number of folders to look at, since a parent folder may have any number of entries.
const FOLDERS_MAX: usize = 64;

/// The library, loaded for as long as the process runs.
#[derive(Debug)]
pub(super) struct CuFile {
    pub(super) table: Table,
    /// Version number: 1,000 times the major plus 10 times the minor.
    pub(super) version: c_int,
    pub(super) path: PathBuf,
}

impl CuFile {
    /// Loads the first of `places` that exists. The library's initializers run, so call this only
    /// in a process that may crash, until it is known that they return.
    ///
    /// # Errors
    /// Why none can be used: the reason of the first one that exists, or that none exists.
    pub(super) fn load(places: &[PathBuf]) -> Result<Self, String> {
        let mut reason = None;
        for place in places {
            match Self::load_one(place) {
                Ok(found) => return Ok(found),
                Err(Unusable::Missing) => {}
                Err(Unusable::Bad(why)) => reason = reason.or(Some(why)),
            }
        }
        Err(reason.unwrap_or_else(|| {
            format!(
                "there is no `{NAME}`: install GPUDirect Storage or `pip install nvidia-cufile`"
            )
        }))
    }

    fn load_one(path: &Path) -> Result<Self, Unusable> {
        let is_named = is_named(path);
        if is_named {
            fits(path)?;
        }
        let shown = path.display();
        // SAFETY: the initializers are the vendor's; the library is never unloaded.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            let source = std::error::Error::source(&error);
            let words = source.map_or_else(|| error.to_string(), ToString::to_string);
            // The loader does not say whether the library itself or a dependency is missing, but
            // its message begins with the name it could not open.
            match is_named || !words.starts_with(NAME) {
                true => Unusable::Bad(format!("cannot load `{shown}`: {words}")),
                false => Unusable::Missing,
            }
        })?;
        let table = Table::fill(&library).map_err(|name| {
            Unusable::Bad(format!("`{shown}` has no `{name}`: it is older than 1.11, or no cuFile"))
        })?;
        // The functions of the table belong to it, so it must stay loaded.
        std::mem::forget(library);
        let mut version = 0;
        // SAFETY: the output outlives the call.
        let answer = unsafe { (table.get_version)(&raw mut version) };
        answer
            .checked("cuFileGetVersion")
            .map_err(|error| Unusable::Bad(format!("`{shown}`: {error}")))?;
        if !VERSIONS.contains(&version) {
            let found = version_text(version);
            return Err(Unusable::Bad(format!(
                "`{shown}` is version {found}: 1.11 or a later one of 1 is needed"
            )));
        }
        Ok(Self { table, version, path: path.into() })
    }
}

/// Why a library cannot be used.
enum Unusable {
    Missing,
    Bad(String),
}

/// Whether a file is a library for this architecture. For a foreign one the loader would claim that
/// it is missing.
fn fits(path: &Path) -> Result<(), Unusable> {
    let mut head = [0; 20];
    let shown = path.display();
    let no_library = || Unusable::Bad(format!("`{shown}` is no library"));
    // Opening a pipe would block until it has a writer.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(no_library());
    }
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Unusable::Missing),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(no_library()),
        Err(error) => Err(Unusable::Bad(format!("cannot read `{shown}`: {error}"))),
        Ok(()) if head[..4] != *b"\x7fELF" => Err(no_library()),
        Ok(()) => {
            let machine = u16::from_le_bytes([head[18], head[19]]);
            if head[4] == 2 && machine == MACHINE {
                return Ok(());
            }
            let name = match machine {
                62 => "x86-64".to_owned(),
                183 => "aarch64".to_owned(),
                other => format!("another machine (ELF {other})"),
            };
            Err(Unusable::Bad(format!("`{shown}` is built for {name}, which this is not")))
        }
    }
}

/// Whether a place is a path, as opposed to a name for the loader to find.
fn is_named(place: &Path) -> bool {
    place.components().count() > 1
}

/// `e_machine` of this architecture.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// `1.14` for 1140.
pub(super) fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Places to look, best first. Only `named` if it is set; `packages` are Python package folders, in
/// addition to those of the active virtual environment (`VIRTUAL_ENV`).
pub(super) fn places(named: Option<&Path>, packages: &[PathBuf]) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![named.into()];
    }
    let mut all = vec![PathBuf::from(NAME)];
    for toolkit in toolkits(Path::new(TOOLKITS)) {
        all.extend(IN_TOOLKIT.map(|within| toolkit.join(within).join(NAME)));
    }
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let active = packages_of(environment.as_deref());
    for folder in packages.iter().chain(&active).take(FOLDERS_MAX) {
        all.extend(IN_WHEELS.map(|within| folder.join(within).join(NAME)));
    }
    all
}

/// The folders of Python packages in a virtual environment.
fn packages_of(environment: Option<&Path>) -> Vec<PathBuf> {
    let Some(Ok(entries)) = environment.map(|folder| fs::read_dir(folder.join("lib"))) else {
        return Vec::new();
    };
    let is_python = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("python3.");
    // Another user's folder may hold any number of entries.
    let found = entries.flatten().take(64).filter(|entry| is_python(&entry.file_name()));
    found.map(|entry| entry.path().join("site-packages")).collect()
}

/// Toolkit folders: `cuda`, then `cuda-13.1`, `cuda-12.8`.
fn toolkits(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names =
        entries.flatten().take(1024).filter_map(|entry| entry.file_name().into_string().ok());
    let number = |name: &str| -> Option<(u32, u32)> {
        let (major, minor) = name.strip_prefix("cuda-")?.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let mut found: Vec<((u32, u32), String)> =
        names.filter_map(|name| Some((number(&name)?, name))).collect();
    found.sort_by(|one, other| other.cmp(one));
    let names = found.into_iter().map(|(_, name)| name).take(FOLDERS_MAX);
    std::iter::once("cuda".to_owned()).chain(names).map(|name| folder.join(name)).collect()
}

/// `CUfileHandle_t`.
pub(super) type FileHandle = *mut c_void;

macro_rules! cufile_table {
    (
        required { $($field:ident: $name:literal fn($($argument:ty),*) -> $result:ty;)* }
        optional { $($option:ident: $other:literal fn($($given:ty),*) -> $output:ty;)* }
    ) => {
        /// The library's functions.
        #[derive(Debug)]
        pub(super) struct Table {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(super) $option: Option<unsafe extern "C" fn($($given),*) -> $output>,)*
        }

        impl Table {
            /// Looks up every function; the error is the name of a required one that is missing.
            pub(super) fn fill(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the library's function of this name has the field's signature.
                        *unsafe {
                            library.get::<unsafe extern "C" fn($($argument),*) -> $result>($name)
                        }
                        .map_err(|_| $name.to_str().unwrap_or_default())?
                    },)*
                    // SAFETY: as above.
                    $($option: unsafe { library.get($other) }.ok().map(|function| *function),)*
                })
            }
        }
    };
}

cufile_table! {
    required {
        driver_open: c"cuFileDriverOpen" fn() -> Answer;
        get_version: c"cuFileGetVersion" fn(*mut c_int) -> Answer;
        get_properties: c"cuFileDriverGetProperties" fn(*mut Properties) -> Answer;
        use_count: c"cuFileUseCount" fn() -> c_long;
        handle_register: c"cuFileHandleRegister" fn(*mut FileHandle, *mut Descriptor) -> Answer;
        handle_deregister: c"cuFileHandleDeregister" fn(FileHandle) -> ();
        // Handle, address, bytes, offset in the file, offset from the address.
        read: c"cuFileRead" fn(FileHandle, *mut c_void, usize, i64, i64) -> isize;
        write: c"cuFileWrite" fn(FileHandle, *const c_void, usize, i64, i64) -> isize;
    }
    optional {
        set_stats_level: c"cuFileSetStatsLevel" fn(c_int) -> Answer;
        get_stats_level: c"cuFileGetStatsLevel" fn(*mut c_int) -> Answer;
        stats_start: c"cuFileStatsStart" fn() -> Answer;
        stats_stop: c"cuFileStatsStop" fn() -> Answer;
        get_stats_l3: c"cuFileGetStatsL3" fn(*mut c_void) -> Answer;
        set_parameter_bool: c"cuFileSetParameterBool" fn(c_int, bool) -> Answer;
        get_parameter_bool: c"cuFileGetParameterBool" fn(c_int, *mut bool) -> Answer;
        get_p2p_flags: c"cuFileDriverGetP2PFlags" fn(c_int, *mut c_int) -> Answer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packages_of_an_environment_are_found() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(packages_of(Some(folder.path())), Vec::<PathBuf>::new());
        fs::create_dir_all(folder.path().join("lib/python3.12/site-packages")).unwrap();
        fs::create_dir_all(folder.path().join("lib/other")).unwrap();
        let found = folder.path().join("lib/python3.12/site-packages");
        assert_eq!(packages_of(Some(folder.path())), [found]);
        assert!(packages_of(None).is_empty());
    }

    #[test]
    fn the_newest_toolkit_is_first() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["cuda-12.8", "cuda-9.2", "cuda-13.1", "cuda-13", "cuda-x.y", "other"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let found = toolkits(folder.path());
        let names: Vec<_> =
            found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["cuda", "cuda-13.1", "cuda-12.8", "cuda-9.2"]);
        assert!(toolkits(&folder.path().join("none")).is_empty());
    }

    fn reason(bytes: &[u8]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        fs::write(&path, bytes).unwrap();
        CuFile::load(&places(Some(&path), &[])).unwrap_err()
    }

    #[test]
    fn a_foreign_library_is_recognized_before_it_is_loaded() {
        assert!(reason(b"").ends_with("is no library"));
        assert!(reason(&[7; 100]).ends_with("is no library"));
        let mut elf = [0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 243;
        assert!(reason(&elf).contains("another machine (ELF 243)"));
        let other = if MACHINE == 62 { 183 } else { 62 };
        elf[18] = other;
        assert!(reason(&elf).contains("is built for"), "{}", reason(&elf));
        elf[18] = u8::try_from(MACHINE).unwrap();
        assert!(reason(&elf).contains("cannot load"), "{}", reason(&elf));
    }

    #[test]
    fn a_folder_or_a_pipe_is_no_library() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for path in [folder.path(), &pipe] {
            let why = CuFile::load(&places(Some(path), &[])).unwrap_err();
            assert!(why.ends_with("is no library"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..70),
            is_elf in any::<bool>(),
            class in 0_u8..4,
            machine in prop_oneof![Just(62_u16), Just(183), any::<u16>()],
        ) {
            if is_elf && bytes.len() >= 20 {
                bytes[..4].copy_from_slice(b"\x7fELF");
                bytes[4] = class;
                bytes[18..20].copy_from_slice(&machine.to_le_bytes());
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), &bytes).unwrap();
            let whole = bytes.len() >= 20 && bytes.starts_with(b"\x7fELF") && bytes[4] == 2;
            let fitting = whole && bytes[18..20] == MACHINE.to_le_bytes();
            prop_assert_eq!(fits(file.path()).is_ok(), fitting);
        }
    }

    #[test]
    fn a_missing_library_has_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let none = CuFile::load(&[folder.path().join(NAME)]).unwrap_err();
        assert!(none.contains("pip install nvidia-cufile"), "{none}");
    }
}
