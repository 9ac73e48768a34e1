/* libmpi of AWS's Open MPI: what it is; no job can be started with it. */

static void copy(char *to, const char *from, int *length)
{
	int count = 0;

	while (from[count]) {
		to[count] = from[count];
		count++;
	}
	to[count] = 0;
	*length = count;
}

/* MPI 3.1, 8.1: 0 is MPI_SUCCESS. */
int MPI_Get_library_version(char *version, int *length)
{
	copy(version, "Open MPI v" VERSION ", gpu-ami replica", length);
	return 0;
}

/* MPI 3.1, 8.7; 16 is MPI_ERR_OTHER. */
int MPI_Init(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	return 16;
}
