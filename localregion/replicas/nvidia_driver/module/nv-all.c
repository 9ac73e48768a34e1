// SPDX-License-Identifier: GPL-2.0 OR MIT
/* gpu-ami replica: one translation unit, since under emulation the kernel's headers are most of a build. */
#include "nv-board.c"
#include "nv-xid.c"
#include "nv-minors.c"
#include "nv-caps.c"
#include "nv-procfs.c"
#include "nv-nvswitch.c"
#include "nv-umad.c"
#include "nv-p2p.c"
#include "nv.c"
