//! The functions of `libcufile`, as a table that is filled at run time.
//!
//! Functions of version 1.11 are required; later ones are optional. Signatures are those of
//! `cufile.h`, unchanged from 1.11 to 1.20.

#![expect(unsafe_code, reason = "declares the functions of a library")]

use std::ffi::{c_int, c_long, c_void};

use libloading::Library;

use super::failure::Answer;
use super::layout::{Descriptor, Properties};

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
