/* mpi.h of a replica: the calls that its libmpi has. */
#ifndef OMPI_MPI_H
#define OMPI_MPI_H

#define MPI_VERSION 3
#define MPI_SUBVERSION 1
#define MPI_SUCCESS 0

#ifdef __cplusplus
extern "C" {
#endif
int MPI_Init(int *argc, char ***argv);
int MPI_Get_library_version(char *version, int *length);
#ifdef __cplusplus
}
#endif

#endif
