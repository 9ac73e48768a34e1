/* gpu-ami replica of libcuda: one translation unit, compiled without libc (staging.py); libc's functions are those of the
 * process that loads it. VERSION is "550.163.01". */
#include "../driver_files/system.h"
#include "../driver_files/files.c"
#include "../driver_files/boards.c"
#include "../driver_files/settings.c"
#include "../driver_files/versions.c"
#include "version.c"
#include "errors.c"
#include "devices.c"
#include "memory.c"
#include "ptx.c"
#include "execute.c"
#include "api.c"
