/* Settings of a GPU since the boot, as nvidia-smi keeps them (smi/settings.py), one line of JSON:
 * {"persistence": true, "power": 250.0, "clocks": [6251, 1410], "mig": true, "pending_mig": true, "instances": ["3g.20gb"]} */

#define SLICES 7 /* of a GPU in MIG mode */

static int read_settings(const struct board *board, char *text, size_t bytes)
{
	char path[128];

	snprintf(path, sizeof path, "/run/nvidia-smi/%s", board->uuid);
	if (read_file(path, text, bytes) > 0)
		return 1;
	text[0] = '\0';
	return 0;
}

/* What follows `"key": `; NULL where the key is not set. */
static const char *setting(const char *text, const char *key)
{
	char quoted[64];
	const char *at;

	snprintf(quoted, sizeof quoted, "\"%s\": ", key);
	at = strstr(text, quoted);
	return at ? at + strlen(quoted) : NULL;
}

static int is_set(const char *text, const char *key)
{
	const char *value = setting(text, key);

	return value && !strncmp(value, "true", 4);
}

/* Profiles of the MIG devices, "3g.20gb". Their number, or -1 where the GPU is not in MIG mode. */
static int list_instances(const struct board *board, char profiles[SLICES][32])
{
	char text[2048];
	const char *at, *end;
	int count = 0, length;

	if (!read_settings(board, text, sizeof text) || !is_set(text, "mig"))
		return -1;
	at = setting(text, "instances");
	end = at ? strchr(at, ']') : NULL;
	while (end && count < SLICES && (at = strchr(at, '"')) && at++ < end) {
		for (length = 0; at[length] && at[length] != '"' && length < 31; length++)
			profiles[count][length] = at[length];
		profiles[count++][length] = '\0';
		at += length + 1;
	}
	return count;
}

/* Another than the board's, whatever its last digit is: smi/cli.py. */
static void mig_uuid(const struct board *board, int number, char *uuid, size_t bytes)
{
	snprintf(uuid, bytes, "MIG-%x%.*s%x", digit(board->uuid[4]) ^ 8, (int)strlen(board->uuid) - 6, board->uuid + 5, number);
}
