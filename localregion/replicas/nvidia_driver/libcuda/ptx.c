/*
 * Reads PTX: one or more entries of straight-line code (NVIDIA's "PTX ISA", 2026-11-22). It knows the instructions of the list
 * below, no branches, no shared memory, no predicates; all else is CUDA_ERROR_INVALID_PTX with a line in the log.
 */

#define ENTRIES 8
#define PARAMETERS 8
#define REGISTERS 128
#define INSTRUCTIONS 512

enum type { U32, S32, B32, F32, U64, S64, B64, F64, NO_TYPE };
enum kind { NOTHING, REGISTER, CONSTANT, SPECIAL };
enum special { TID, NTID, CTAID, NCTAID };
enum code { LOAD_PARAMETER, LOAD, STORE, MOVE, ADD, SUBTRACT, MULTIPLY, MULTIPLY_WIDE, MULTIPLY_ADD, AND, OR, XOR, SHIFT_LEFT,
	    SHIFT_RIGHT, CONVERT, RETURN };

struct operand {
	enum kind kind;
	uint64_t value; /* register's number, constant, special */
};

struct instruction {
	enum code code;
	enum type type, source; /* source: of cvt */
	struct operand operands[4];
	int offset, parameter;
};

struct kernel {
	char name[64];
	struct {
		char name[32];
		enum type type;
	} parameters[PARAMETERS];
	int parameter_count, register_count, instruction_count, device;
	char registers[REGISTERS][24];
	struct instruction instructions[INSTRUCTIONS];
};

struct reader {
	const char *at;
	char word[64], wrong[64];
	int line;
};

static const char *const types[] = {"u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64"};
static const struct {
	const char *name;
	enum code code;
	int operands;
} codes[] = {
	{"ld.param", LOAD_PARAMETER, 2}, {"ld.global", LOAD, 2}, {"st.global", STORE, 2}, {"mov", MOVE, 2},
	{"cvta.to.global", MOVE, 2}, {"add", ADD, 3}, {"add.rn", ADD, 3}, {"sub", SUBTRACT, 3}, {"mul.lo", MULTIPLY, 3},
	{"mul.rn", MULTIPLY, 3}, {"mul.wide", MULTIPLY_WIDE, 3}, {"mad.lo", MULTIPLY_ADD, 4}, {"and", AND, 3}, {"or", OR, 3},
	{"xor", XOR, 3}, {"shl", SHIFT_LEFT, 3}, {"shr", SHIFT_RIGHT, 3}, {"cvt", CONVERT, 2}, {"cvt.rn", CONVERT, 2},
	{"ret", RETURN, 0},
};

static int is_word(char byte)
{
	return (byte >= '0' && byte <= '9') || ((byte | 32) >= 'a' && (byte | 32) <= 'z') || strchr("._%$-", byte);
}

/* The next word or sign; an empty one at the end. */
static char *next(struct reader *in)
{
	size_t count = 0;

	for (; *in->at; in->at++) {
		if (in->at[0] == '/' && in->at[1] == '/')
			while (in->at[1] && in->at[1] != '\n')
				in->at++;
		else if (*in->at == '\n')
			in->line++;
		else if (!strchr(" \t\r", *in->at))
			break;
	}
	if (*in->at && !is_word(*in->at))
		in->word[count++] = *in->at++;
	else
		while (*in->at && is_word(*in->at) && count < sizeof in->word - 1)
			in->word[count++] = *in->at++;
	in->word[count] = '\0';
	return in->word;
}

static int fail(struct reader *in, const char *what)
{
	if (!in->wrong[0])
		snprintf(in->wrong, sizeof in->wrong, "%s", what);
	return 0;
}

static int expect(struct reader *in, const char *sign)
{
	return !strcmp(next(in), sign) || fail(in, in->word);
}

static enum type type_named(const char *text)
{
	int type;

	for (type = U32; type < NO_TYPE; type++)
		if (!strcmp(text, types[type]))
			break;
	return type;
}

static int find_register(const struct kernel *kernel, const char *name)
{
	int number;

	for (number = 0; number < kernel->register_count; number++)
		if (!strcmp(kernel->registers[number], name))
			return number;
	return -1;
}

static int add_register(struct reader *in, struct kernel *kernel, const char *name, int number)
{
	if (kernel->register_count == REGISTERS || strlen(name) > 16)
		return fail(in, "too many registers, or a long name");
	if (number < 0)
		snprintf(kernel->registers[kernel->register_count++], 24, "%s", name);
	else
		snprintf(kernel->registers[kernel->register_count++], 24, "%s%d", name, number);
	return 1;
}

/* `.reg .u32 %a, %b;` or `.reg .u32 %r<16>;` */
static int read_registers(struct reader *in, struct kernel *kernel)
{
	char name[64];
	int count, number;

	if (next(in)[0] != '.' || type_named(in->word + 1) == NO_TYPE)
		return fail(in, in->word);
	do {
		snprintf(name, sizeof name, "%s", next(in));
		if (!strcmp(next(in), "<")) {
			count = strtoul(next(in), NULL, 10);
			for (number = 0; number < count; number++)
				if (!add_register(in, kernel, name, number))
					return 0;
			if (!expect(in, ">"))
				return 0;
			next(in);
		} else if (!add_register(in, kernel, name, -1)) {
			return 0;
		}
	} while (!strcmp(in->word, ","));
	return !strcmp(in->word, ";") || fail(in, in->word);
}

static int read_constant(const char *text, uint64_t *value)
{
	const char *at = text + (*text == '-');
	char *end;

	if (*at < '0' || *at > '9')
		return 0;
	if (at[0] == '0' && (at[1] == 'f' || at[1] == 'd' || at[1] == 'F' || at[1] == 'D'))
		*value = strtoul(at + 2, &end, 16);
	else
		*value = strtoul(at, &end, 0);
	if (*text == '-')
		*value = -*value;
	return !*end || !strcmp(end, "U");
}

static int read_operand(struct reader *in, const struct kernel *kernel, struct operand *operand)
{
	static const char *const specials[] = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"};
	int number = find_register(kernel, in->word);

	operand->kind = REGISTER;
	operand->value = number;
	if (number >= 0)
		return 1;
	operand->kind = SPECIAL;
	for (number = TID; number <= NCTAID; number++)
		if (!strcmp(in->word, specials[number])) {
			operand->value = number;
			return 1;
		}
	operand->kind = CONSTANT;
	return read_constant(in->word, &operand->value) || fail(in, in->word);
}

/* `[name]` of a parameter, or `[%register]`, `[%register+4]`. */
static int read_address(struct reader *in, const struct kernel *kernel, struct instruction *row, struct operand *operand)
{
	if (!expect(in, "["))
		return 0;
	next(in);
	if (row->code == LOAD_PARAMETER) {
		for (row->parameter = 0; row->parameter < kernel->parameter_count; row->parameter++)
			if (!strcmp(kernel->parameters[row->parameter].name, in->word))
				return expect(in, "]");
		return fail(in, in->word);
	}
	if (!read_operand(in, kernel, operand))
		return 0;
	if (!strcmp(next(in), "+")) {
		row->offset = strtoul(next(in), NULL, 0);
		next(in);
	}
	return !strcmp(in->word, "]") || fail(in, in->word);
}

/* The code and its types: `mul.wide.u32`, `cvt.rn.f32.u32`. -1: unknown; else the number of operands. */
static int read_code(const char *text, struct instruction *row)
{
	char name[64];
	char *dot, *last = NULL;
	unsigned int code;

	snprintf(name, sizeof name, "%s", text);
	for (dot = name; (dot = strchr(dot, '.')); dot++)
		last = dot;
	row->type = row->source = NO_TYPE;
	if (last && (row->type = type_named(last + 1)) != NO_TYPE) {
		*last = '\0';
		for (last = NULL, dot = name; (dot = strchr(dot, '.')); dot++)
			last = dot;
		if (last && !strncmp(name, "cvt.", 4)) { /* the target's type stands before the source's */
			row->source = row->type;
			row->type = type_named(last + 1);
			*last = '\0';
		}
	}
	for (code = 0; code < sizeof codes / sizeof *codes; code++)
		if (!strcmp(codes[code].name, name) && (row->type != NO_TYPE || codes[code].code == RETURN)) {
			row->code = codes[code].code;
			return codes[code].operands;
		}
	return -1;
}

static int read_instruction(struct reader *in, struct kernel *kernel)
{
	struct instruction *row = &kernel->instructions[kernel->instruction_count];
	int count, place;

	if (kernel->instruction_count++ == INSTRUCTIONS - 1)
		return fail(in, "too many instructions");
	count = read_code(in->word, row);
	if (count < 0)
		return fail(in, in->word);
	for (place = 0; place < count; place++) {
		if (place && !expect(in, ","))
			return 0;
		if (place == (row->code != STORE) && row->code <= STORE) {
			if (!read_address(in, kernel, row, &row->operands[place]))
				return 0;
		} else {
			next(in);
			if (!read_operand(in, kernel, &row->operands[place]))
				return 0;
		}
	}
	if (count && row->code != STORE && row->operands[0].kind != REGISTER)
		return fail(in, "the target is no register");
	return expect(in, ";");
}

static int read_entry(struct reader *in, struct kernel *kernel)
{
	snprintf(kernel->name, sizeof kernel->name, "%s", next(in));
	if (!expect(in, "("))
		return 0;
	while (strcmp(next(in), ")")) {
		if (!strcmp(in->word, ","))
			next(in);
		if (strcmp(in->word, ".param") || kernel->parameter_count == PARAMETERS)
			return fail(in, in->word);
		kernel->parameters[kernel->parameter_count].type = type_named(next(in) + 1);
		snprintf(kernel->parameters[kernel->parameter_count++].name, 32, "%s", next(in));
	}
	if (!expect(in, "{"))
		return 0;
	while (strcmp(next(in), "}"))
		if (!(strcmp(in->word, ".reg") ? read_instruction(in, kernel) : read_registers(in, kernel)))
			return 0;
	return kernel->instruction_count && kernel->instructions[kernel->instruction_count - 1].code == RETURN
		       ? 1
		       : fail(in, "no ret at the end");
}

/* The newest PTX of a CUDA release, ten times: "PTX ISA", release notes. 11.4: 7.4; 12.6: 8.5; 12.9: 8.8; 13.0: 9.0. */
static unsigned int newest_ptx(void)
{
	int cuda;

	cuDriverGetVersion(&cuda);
	if (cuda >= 12060 && cuda < 13000)
		return 79 + cuda % 1000 / 10;
	return (cuda / 1000 - 4) * 10 + cuda % 1000 / 10;
}

/* Directives before the entries. 0: read on. */
static int read_directive(struct reader *in, const struct device *device)
{
	unsigned int number;

	if (!strcmp(in->word, ".version")) {
		number = strtoul(next(in), NULL, 10) * 10;
		number += strchr(in->word, '.') ? strtoul(strchr(in->word, '.') + 1, NULL, 10) : 0;
		return number > newest_ptx() ? UNSUPPORTED_PTX_VERSION : 0;
	}
	if (!strcmp(in->word, ".target")) {
		if (strncmp(next(in), "sm_", 3))
			return INVALID_PTX;
		number = strtoul(in->word + 3, NULL, 10);
		return number > device->major_capability * 10 + device->minor_capability ? INVALID_PTX : 0;
	}
	if (!strcmp(in->word, ".address_size"))
		return strcmp(next(in), "64") ? INVALID_PTX : 0;
	return strcmp(in->word, ".visible") ? INVALID_PTX : 0;
}

/* Entries of the text; log: what is wrong. */
static int read_ptx(const char *text, const struct device *device, struct kernel *kernels, int *count, char *log, size_t room)
{
	struct reader in = {.at = text, .line = 1};
	int error = 0;

	*count = 0;
	while (!error && *next(&in)) {
		if (!strcmp(in.word, ".entry") && *count < ENTRIES) {
			if (!read_entry(&in, &kernels[(*count)++]))
				error = INVALID_PTX;
		} else {
			error = read_directive(&in, device);
		}
	}
	if (!error && !*count)
		error = INVALID_PTX;
	if (error && log && room)
		snprintf(log, room, "gpu-ami replica of ptxas, line %d: cannot use '%s'", in.line, in.wrong[0] ? in.wrong : in.word);
	return error;
}
