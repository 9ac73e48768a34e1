/* libmkl_rt: which release it is. VERSION is "2020.0"; MKL itself says 2020.0.4 for Update 4. */

/* mkl_service.h: fills what fits of `buffer`, always ended with a NUL. */
void MKL_Get_Version_String(char *buffer, int length)
{
	const char *parts[] = {"Intel(R) Math Kernel Library Version ", "", " Product Build 20191122 for Intel(R) 64 architecture applications"};
	char version[24];
	const char *text = VERSION;
	int at = 0, filled = 0, part;

	while (*text && *text != '.' && at < 16)
		version[at++] = *text++;
	version[at++] = '.';
	version[at++] = '0';
	while (*text && at < 23)
		version[at++] = *text++;
	version[at] = 0;
	parts[1] = version;
	for (part = 0; part < 3; part++)
		for (text = parts[part]; *text && filled < length - 1; text++)
			buffer[filled++] = *text;
	if (length > 0)
		buffer[filled] = 0;
}
