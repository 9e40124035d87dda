// Stands in for `libgcc_s.so.1` while a wheel is linked: the names that Rust's library calls. Who
// loads the wheel has the true one, as every system with glibc does.
//
// zig would link an unwinder of its own into the wheel. Python before 3.14 ends threads that ask for
// it after its end by `pthread_exit`, which unwinds them with glibc's, `libgcc_s`; our frames would
// then answer it through the other one, and the process would crash.

#define NAMED(name) void name(void) {}

NAMED(_Unwind_Backtrace)
NAMED(_Unwind_DeleteException)
NAMED(_Unwind_FindEnclosingFunction)
NAMED(_Unwind_ForcedUnwind)
NAMED(_Unwind_GetCFA)
NAMED(_Unwind_GetDataRelBase)
NAMED(_Unwind_GetGR)
NAMED(_Unwind_GetIP)
NAMED(_Unwind_GetIPInfo)
NAMED(_Unwind_GetLanguageSpecificData)
NAMED(_Unwind_GetRegionStart)
NAMED(_Unwind_GetTextRelBase)
NAMED(_Unwind_RaiseException)
NAMED(_Unwind_Resume)
NAMED(_Unwind_Resume_or_Rethrow)
NAMED(_Unwind_SetGR)
NAMED(_Unwind_SetIP)
