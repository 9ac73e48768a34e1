/* nccl.h of a replica: the version, and the call that the library has. */
#ifndef NCCL_H_
#define NCCL_H_

#define NCCL_MAJOR @MAJOR@
#define NCCL_VERSION_TEXT "@VERSION@"

#ifdef __cplusplus
extern "C" {
#endif
int ncclGetVersion(int *version);
#ifdef __cplusplus
}
#endif

#endif
