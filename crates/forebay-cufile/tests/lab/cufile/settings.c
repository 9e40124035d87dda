/* The last of `library.c`: what versions after 1.11 added. */

enum { SIZES = 16 };

static int level;
static size_t sizes[SIZES];

#if AS_OF >= 1140
CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t which, bool value) {
  called(__func__, which, value);
  bool is_late = opened && !does("late");
  if (is_late || which >= BOOLS) return answer(is_late ? 5026 : 5022);
  if (!does("keeps")) bools[which] = value, is_set[which] = true;
  return answer(0);
}

CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t which, bool *value) {
  *value = which < BOOLS && (bools[which] || (which == 2 && does("forced")));
  return answer(which < BOOLS ? 0 : 5022);
}

CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t which, size_t value) {
  called(__func__, which, value);
  if (opened || which >= SIZES) return answer(opened ? 5026 : 5022);
  sizes[which] = value;
  return answer(0);
}

CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t which, size_t *value) {
  *value = which < SIZES ? sizes[which] : 0;
  return answer(which < SIZES ? 0 : 5022);
}
#endif

#if AS_OF >= 1150
CUfileError_t cuFileSetStatsLevel(int wanted) {
  called(__func__, 0, wanted);
  if (wanted < 0 || wanted > 3) return answer(5022);
  level = wanted;
  return answer(0);
}

CUfileError_t cuFileGetStatsLevel(int *now) {
  *now = level;
  return answer(0);
}

CUfileError_t cuFileStatsStart(void) {
  CALLED();
  return answer(opened ? 0 : 5001);
}

CUfileError_t cuFileStatsStop(void) {
  CALLED();
  if (does("stop-spin")) spin();
  level = 0;
  return answer(opened ? 0 : 5001);
}

/* As 1.15 does at a process's end. */
__attribute__((destructor)) static void end(void) {
  if (opened && level == 3 && !does("stop-spin")) *(volatile int *)0 = 0;
}

CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t *out) {
  if (!opened || level < 3) return answer(opened ? 5022 : 5001);
  size_t grown = version() >= 1190 ? 112 : 0;
  uint64_t *words = (uint64_t *)out;
  memset(out, 0, 5000 + grown);
  pthread_mutex_lock(&lock);
  memcpy(words, totals, 512 + grown);
  words[(1024 + grown) / 8] = 1;
  memcpy(words + (1024 + grown) / 8 + 1, gpu, sizeof gpu);
  pthread_mutex_unlock(&lock);
  return answer(0);
}
#endif

#if AS_OF >= 1160
CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t which, CUfileP2PFlags_t *flags) {
  *flags = which == 4 && !does("posix") ? 1 + 2 * !!does("nvidia-fs") : 0;
  return answer(opened ? 0 : 5001);
}
#endif
