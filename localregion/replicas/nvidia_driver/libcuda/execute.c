/* Runs a kernel: each instruction for LANES threads, then the next. */

#define LANES 256

struct launch {
	const struct kernel *kernel;
	uint64_t parameters[PARAMETERS];
	unsigned int block, blocks;
};

static uint64_t lanes[REGISTERS][LANES];

/* The operand of `count` threads from `first` on: a register's lanes, or `room` filled with the others' values. */
static const uint64_t *operand(const struct launch *launch, uint64_t first, unsigned int count, const struct operand *from,
			       uint64_t *room)
{
	unsigned int lane;

	if (from->kind == REGISTER)
		return lanes[from->value];
	if (from->kind == NOTHING)
		return room;
	for (lane = 0; lane < count; lane++) {
		uint64_t thread = first + lane;

		if (from->kind == CONSTANT)
			room[lane] = from->value;
		else if (from->value == TID)
			room[lane] = thread % launch->block;
		else if (from->value == CTAID)
			room[lane] = thread / launch->block;
		else
			room[lane] = from->value == NTID ? launch->block : launch->blocks;
	}
	return room;
}

static float as_float(uint64_t bits)
{
	uint32_t low = bits;
	float value;

	memcpy(&value, &low, sizeof value);
	return value;
}

static double as_double(uint64_t bits)
{
	double value;

	memcpy(&value, &bits, sizeof value);
	return value;
}

static uint64_t float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static uint64_t double_bits(double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

#define EACH(result) \
	for (lane = 0; lane < count; lane++) \
		into[lane] = (result)

static int calculate_float(const struct instruction *row, unsigned int count, uint64_t *into, const uint64_t *a, const uint64_t *b)
{
	unsigned int lane;
	int single = row->type == F32;

	if (row->code == ADD && single)
		EACH(float_bits(as_float(a[lane]) + as_float(b[lane])));
	else if (row->code == ADD)
		EACH(double_bits(as_double(a[lane]) + as_double(b[lane])));
	else if (row->code == MULTIPLY && single)
		EACH(float_bits(as_float(a[lane]) * as_float(b[lane])));
	else if (row->code == MULTIPLY)
		EACH(double_bits(as_double(a[lane]) * as_double(b[lane])));
	else
		return INVALID_PTX;
	return SUCCESS;
}

static int convert(const struct instruction *row, unsigned int count, uint64_t *into, const uint64_t *a)
{
	unsigned int lane;

	if (row->type == F32 && row->source == U32)
		EACH(float_bits((float)(uint32_t)a[lane]));
	else if (row->type == F64 && row->source == U32)
		EACH(double_bits((double)(uint32_t)a[lane]));
	else if ((row->type == U64 && row->source == U32) || (row->type == U32 && row->source == U64))
		EACH((uint32_t)a[lane]);
	else
		return INVALID_PTX;
	return SUCCESS;
}

static int calculate(const struct instruction *row, unsigned int count, uint64_t *into, const uint64_t *a, const uint64_t *b,
		     const uint64_t *c)
{
	uint64_t mask = row->type >= U64 ? ~(uint64_t)0 : 0xffffffff;
	unsigned int lane, width = row->type >= U64 ? 64 : 32;

	if (row->code == CONVERT)
		return convert(row, count, into, a);
	if (row->code != MOVE && (row->type == F32 || row->type == F64))
		return calculate_float(row, count, into, a, b);
	switch (row->code) {
	case MOVE:
		EACH(a[lane] & mask);
		break;
	case ADD:
		EACH((a[lane] + b[lane]) & mask);
		break;
	case SUBTRACT:
		EACH((a[lane] - b[lane]) & mask);
		break;
	case MULTIPLY:
		EACH((a[lane] * b[lane]) & mask);
		break;
	case MULTIPLY_WIDE:
		if (row->type != U32)
			return INVALID_PTX;
		EACH((uint64_t)(uint32_t)a[lane] * (uint32_t)b[lane]);
		break;
	case MULTIPLY_ADD:
		EACH((a[lane] * b[lane] + c[lane]) & mask);
		break;
	case AND:
		EACH(a[lane] & b[lane] & mask);
		break;
	case OR:
		EACH((a[lane] | b[lane]) & mask);
		break;
	case XOR:
		EACH((a[lane] ^ b[lane]) & mask);
		break;
	case SHIFT_LEFT:
		EACH(b[lane] < width ? (a[lane] << b[lane]) & mask : 0);
		break;
	case SHIFT_RIGHT:
		if (row->type == S32 || row->type == S64)
			return INVALID_PTX;
		EACH(b[lane] < width ? (a[lane] & mask) >> b[lane] : 0);
		break;
	default:
		return INVALID_PTX;
	}
	return SUCCESS;
}

static int load(const struct instruction *row, int device, unsigned int count, const uint64_t *address, uint64_t *into)
{
	size_t width = row->type >= U64 ? 8 : 4;
	unsigned int lane;

	for (lane = 0; lane < count; lane++) {
		unsigned char *host = translate(device, address[lane] + row->offset, width);

		if (!host)
			return ILLEGAL_ADDRESS;
		into[lane] = 0;
		memcpy(&into[lane], host, width);
	}
	return SUCCESS;
}

static int store(const struct instruction *row, int device, unsigned int count, const uint64_t *address, const uint64_t *value)
{
	size_t width = row->type >= U64 ? 8 : 4;
	unsigned int lane;

	for (lane = 0; lane < count; lane++) {
		unsigned char *host = translate(device, address[lane] + row->offset, width);

		if (!host)
			return ILLEGAL_ADDRESS;
		memcpy(host, &value[lane], width);
	}
	return SUCCESS;
}

static int execute_lanes(const struct launch *launch, uint64_t first, unsigned int count)
{
	static uint64_t rooms[4][LANES];
	const struct kernel *kernel = launch->kernel;
	const struct instruction *row = kernel->instructions;
	const uint64_t *operands[4];
	unsigned int lane, place;
	int error = SUCCESS;

	for (; !error && row < kernel->instructions + kernel->instruction_count && row->code != RETURN; row++) {
		uint64_t *into = lanes[row->operands[0].value];

		for (place = 0; place < 4; place++)
			operands[place] = operand(launch, first, count, &row->operands[place], rooms[place]);
		if (row->code == LOAD_PARAMETER)
			EACH(launch->parameters[row->parameter]);
		else if (row->code == LOAD)
			error = load(row, kernel->device, count, operands[1], into);
		else if (row->code == STORE)
			error = store(row, kernel->device, count, operands[0], operands[1]);
		else
			error = calculate(row, count, into, operands[1], operands[2], operands[3]);
	}
	return error;
}

/* The address to which the thread's last store goes, for the fault "wrong-result"; 0 if there is none. */
static uint64_t stored_by(const struct kernel *kernel, unsigned int lane)
{
	const struct instruction *row = kernel->instructions + kernel->instruction_count;

	while (row-- > kernel->instructions)
		if (row->code == STORE && row->operands[0].kind == REGISTER)
			return lanes[row->operands[0].value][lane] + row->offset;
	return 0;
}

static int execute(const struct launch *launch, int wrong)
{
	uint64_t threads = (uint64_t)launch->block * launch->blocks, first;
	unsigned int count = 0;
	unsigned char *host;
	int error = SUCCESS;

	for (first = 0; !error && first < threads; first += count) {
		count = threads - first < LANES ? threads - first : LANES;
		error = execute_lanes(launch, first, count);
	}
	if (!error && wrong && count && (host = translate(launch->kernel->device, stored_by(launch->kernel, count / 2), 4)))
		host[1] ^= 4;
	return error;
}
