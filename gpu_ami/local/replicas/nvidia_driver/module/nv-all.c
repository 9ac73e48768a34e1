// SPDX-License-Identifier: GPL-2.0 OR MIT
/* gpu-ami replica: one translation unit, since under emulation the kernel's headers are most of a build. */
#include "nv-board.c"
#include "nv-xid.c"
#include "nv-caps.c"
#include "nv-procfs.c"
#include "nv-nvswitch.c"
<<<<<<< HEAD
#include "nv-umad.c"
=======
#include "nv-p2p.c"
>>>>>>> 1429f10 (efa: Build and judge efa_nv_peermem (unfinished, not landed))
#include "nv.c"
