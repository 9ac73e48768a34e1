/* Files that the driver shows. GPU_AMI_ROOT: the folder that stands for / in tests. */

static const char *rooted(const char *path, char *full, size_t bytes)
{
	const char *root = getenv("GPU_AMI_ROOT");

	snprintf(full, bytes, "%s%s", root ? root : "", path);
	return full;
}

static long read_file(const char *path, char *text, size_t bytes)
{
	char full[512];
	long count, sum = 0;
	int file = open(rooted(path, full, sizeof full), READ_ONLY);

	if (file < 0)
		return -1;
	while (sum < (long)bytes - 1 && (count = read(file, text + sum, bytes - 1 - sum)) > 0)
		sum += count;
	close(file);
	text[sum] = '\0';
	return sum;
}

/* 0, or the errno of opening a device node for reading and writing. */
static int open_error(const char *path)
{
	char full[512];
	int file = open(rooted(path, full, sizeof full), READ_WRITE);

	if (file < 0)
		return *__errno_location();
	close(file);
	return 0;
}

static void *open_folder(const char *path)
{
	char full[512];

	return opendir(rooted(path, full, sizeof full));
}

/* The value of `key` in lines "key: value". */
static int value_of(const char *text, const char *key, char *value, size_t bytes)
{
	size_t length = strlen(key), count = 0;
	const char *line;

	for (line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (!strncmp(line, key, length) && line[length] == ':' && line[length + 1] == ' ') {
			for (line += length + 2; *line && *line != '\n' && count < bytes - 1; line++)
				value[count++] = *line;
			value[count] = '\0';
			return 1;
		}
	return 0;
}

static unsigned int digit(char text)
{
	return text <= '9' ? text - '0' : (text | 32) - 'a' + 10;
}
