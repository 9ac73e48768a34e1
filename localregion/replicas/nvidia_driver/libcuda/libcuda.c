/* gpu-ami replica of libcuda: one translation unit, compiled without libc (staging.py); libc's functions are those of the
 * process that loads it. VERSION is "550.163.01". */
#include "system.h"
#include "version.c"
#include "errors.c"
#include "boards.c"
#include "memory.c"
#include "ptx.c"
#include "execute.c"
#include "api.c"
