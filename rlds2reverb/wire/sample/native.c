/* Responses of Reverb's sample stream -> rows of batches, without a Python object per sample, chunk or tensor.
 *
 *   reader_parse    a response -> its samples: information, trajectories, where their chunks are
 *   reader_layout   loads the chunks of one sample; dtype, shape and rows of each column
 *   reader_place    gives the missing chunks of many samples a place in the arena
 *   reader_decode   decodes them there; two threads may call it at once
 *   reader_fill     loads the chunks that are still missing, and copies the rows of the samples into the arrays of a batch
 *
 * A chunk never changes, so it is decoded once, into an arena: a ring of bytes where new chunks replace the oldest.
 *
 * Nothing that comes from outside is trusted: every size is checked before a byte is read or written. What cannot be
 * read, does not fit together, or is larger than expected is UNUSUAL: the caller then reads the sample with the plain
 * Python code, which gives its values, or the error with its reason.
 *
 * An arena is used by one thread at a time, but for `reader_decode`; the caller holds a lock. No function calls Python.
 *
 * Sources: reverb_service.proto and schema.proto of dm-reverb 0.14; tensor.proto of TensorFlow 2.15; snappy's
 * format_description. The delta encoding of chunks: see `plain.py`.
 */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNUSUAL (-1)
#define NO_MEMORY (-2)
#define NO_END (-3)

#define MAX_DIMS 28 /* of a row; a batch has two axes more, and numpy has 32 */
#define MAX_TENSOR_BYTES ((int64_t)1 << 31)
#define MAX_EXPANSION 22 /* bytes out of one byte of a snappy block: its densest element copies 64 and takes 3 */
#define ALIGNMENT 16
#define DT_STRING 7

typedef int64_t i64;
typedef uint64_t u64;
typedef uint8_t byte;

/* ---------------------------------------------------------------- growing arrays */

typedef struct {
    void *items;
    i64 count, room;
} list;

static void *list_add(list *of, i64 item_bytes) {
    if (of->count == of->room) {
        i64 room = of->room ? 2 * of->room : 256;
        void *items = realloc(of->items, (size_t)(room * item_bytes));
        if (items == NULL) return NULL;
        of->items = items;
        of->room = room;
    }
    return (byte *)of->items + item_bytes * of->count++;
}

/* Gives back the memory of an empty list that was unusually large. */
static void trim(list *of, i64 item_bytes) {
    of->count = 0;
    if (of->room * item_bytes > 1 << 22) {
        free(of->items);
        of->items = NULL;
        of->room = 0;
    }
}

/* ---------------------------------------------------------------- protobuf */

typedef struct {
    const byte *at, *end;
} span;

typedef struct {
    uint32_t number;
    u64 value; /* of a varint, or the eight bytes of a double */
    span bytes; /* of a message, a string, a packed field */
    int kind;
} field;

enum { VARINT = 0, DOUBLE = 1, BYTES = 2, FLOAT = 5 };

static int read_varint(span *in, u64 *value) {
    u64 read = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (in->at == in->end) return 0;
        byte next = *in->at++;
        read |= (u64)(next & 0x7F) << shift;
        if (next < 0x80) {
            *value = read;
            return 1;
        }
    }
    return 0;
}

static double as_double(u64 bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* 1: the next field; 0: the end; UNUSUAL. */
static int next_field(span *in, field *out) {
    u64 tag, size;
    if (in->at == in->end) return 0;
    if (!read_varint(in, &tag) || tag >> 32 || tag < 8) return UNUSUAL;
    out->number = (uint32_t)(tag >> 3);
    out->kind = (int)(tag & 7);
    switch (out->kind) {
    case VARINT:
        return read_varint(in, &out->value) ? 1 : UNUSUAL;
    case DOUBLE:
        if (in->end - in->at < 8) return UNUSUAL;
        memcpy(&out->value, in->at, 8);
        in->at += 8;
        return 1;
    case FLOAT:
        if (in->end - in->at < 4) return UNUSUAL;
        in->at += 4;
        return 1;
    case BYTES:
        if (!read_varint(in, &size) || size > (u64)(in->end - in->at)) return UNUSUAL;
        out->bytes.at = in->at;
        out->bytes.end = in->at += size;
        return 1;
    default:
        return UNUSUAL;
    }
}

/* ---------------------------------------------------------------- snappy */

static int snappy_size(span *in, u64 *size) { return read_varint(in, size) && *size <= (u64)MAX_TENSOR_BYTES; }

/* Copies `size` bytes of the output from `offset` bytes before; the two may overlap. `room`: bytes left from `out` on. */
static void copy_back(byte *out, i64 offset, i64 size, i64 room) {
    const byte *from = out - offset;
    if (offset >= 8 && room >= size + 8) {
        for (i64 at = 0; at < size; at += 8) memcpy(out + at, from + at, 8);
    } else if (offset == 1) {
        memset(out, *from, (size_t)size);
    } else {
        for (i64 at = 0; at < size; at++) out[at] = from[at];
    }
}

/* A block without its size -> exactly `size` bytes. */
static int snappy_decode(span in, byte *out, i64 size) {
    byte *begin = out, *end = out + size;
    const byte *at = in.at, *stop = in.end;
    while (at < stop) {
        byte tag = *at++;
        i64 length, offset;
        if ((tag & 3) == 0) {
            length = (tag >> 2) + 1;
            if (length > 60) {
                int width = (int)length - 60;
                if (stop - at < width) return 0;
                u64 last = 0;
                for (int k = 0; k < width; k++) last |= (u64)at[k] << (8 * k);
                at += width;
                length = (i64)last + 1;
            }
            if (length > stop - at || length > end - out) return 0;
            if (length <= 16 && stop - at >= 16 && end - out >= 16)
                memcpy(out, at, 16);
            else
                memcpy(out, at, (size_t)length);
            at += length;
            out += length;
            continue;
        }
        if ((tag & 3) == 1) {
            if (stop - at < 1) return 0;
            length = ((tag >> 2) & 7) + 4;
            offset = (i64)(tag >> 5) << 8 | at[0];
            at += 1;
        } else if ((tag & 3) == 2) {
            if (stop - at < 2) return 0;
            length = (tag >> 2) + 1;
            offset = (i64)at[0] | (i64)at[1] << 8;
            at += 2;
        } else {
            if (stop - at < 4) return 0;
            length = (tag >> 2) + 1;
            offset = (i64)at[0] | (i64)at[1] << 8 | (i64)at[2] << 16 | (i64)at[3] << 24;
            at += 4;
        }
        if (offset == 0 || offset > out - begin || length > end - out) return 0;
        copy_back(out, offset, length, end - out);
        out += length;
    }
    return out == end;
}

/* ---------------------------------------------------------------- dtypes, and kinds of rows */

/* Bytes of one value; 0 for what Reverb does not store. Text: its span, two int64. */
static i64 item_bytes(i64 dtype) {
    switch (dtype) {
    case 4: case 6: case 10: return 1;            /* uint8, int8, bool */
    case 5: case 14: case 17: case 19: return 2;  /* int16, bfloat16, uint16, float16 */
    case 1: case 3: case 22: return 4;            /* float32, int32, uint32 */
    case 2: case 8: case 9: case 23: return 8;    /* float64, complex64, int64, uint64 */
    case 18: case DT_STRING: return 16;           /* complex128; text */
    default: return 0;
    }
}

static int is_integer(i64 dtype) {
    return dtype == 3 || dtype == 4 || dtype == 5 || dtype == 6 || dtype == 9 || dtype == 17 || dtype == 22 || dtype == 23;
}

typedef struct {
    i64 dtype;
    i64 dims; /* of one row */
    i64 sizes[MAX_DIMS];
    i64 values;    /* of one row */
    i64 row_bytes; /* 0 for rows without values */
} kind;

#define MAX_KINDS 4096 /* tables have a few; shapes that come only once must not pile up */

/* ---------------------------------------------------------------- arena */

typedef struct {
    i64 kind; /* index into the arena's kinds */
    i64 rows; /* 0 for a tensor without axes */
    byte *data; /* rows; of text: [values + 1] int64 offsets, then the bytes */
} tensor;

typedef struct chunk {
    u64 key;
    i64 bytes; /* of all of it in the ring */
    u64 stamp; /* of the sample that needs it */
    struct chunk *next; /* of those outside the ring */
    i64 tensors;
    tensor tensor[];
} chunk;

typedef struct {
    byte *memory;
    i64 size, head, tail, wrap; /* the youngest ends at head, the oldest begins at tail; wrap: where the bytes at the ring's end stop */
    i64 count;
    chunk **slots;
    u64 mask;
    i64 used_slots;
    chunk *outside; /* of the present sample: chunks that the ring has no room for, or that stood in the way of others */
    kind *kinds;
    i64 kind_count, first_kind; /* numbers of kinds are never given twice */
    u64 stamp;
} arena;

static u64 slot_of(const arena *of, u64 key) { return (key * 0x9E3779B97F4A7C15u >> 20) & of->mask; }

static chunk *arena_find(const arena *of, u64 key) {
    for (u64 at = slot_of(of, key); of->slots[at] != NULL; at = (at + 1) & of->mask)
        if (of->slots[at]->key == key) return of->slots[at];
    return NULL;
}

static int arena_insert(arena *of, chunk *new) {
    if (2 * (of->used_slots + 1) > (i64)of->mask + 1) {
        u64 room = 2 * (of->mask + 1);
        chunk **old = of->slots, **slots = calloc(room, sizeof *slots);
        if (slots == NULL) return 0;
        u64 count = of->mask + 1;
        of->slots = slots;
        of->mask = room - 1;
        for (u64 k = 0; k < count; k++) {
            if (old[k] == NULL) continue;
            u64 at = slot_of(of, old[k]->key);
            while (slots[at] != NULL) at = (at + 1) & of->mask;
            slots[at] = old[k];
        }
        free(old);
    }
    u64 at = slot_of(of, new->key);
    while (of->slots[at] != NULL) at = (at + 1) & of->mask;
    of->slots[at] = new;
    of->used_slots++;
    return 1;
}

static void arena_remove(arena *of, const chunk *old) {
    u64 at = slot_of(of, old->key);
    while (of->slots[at] != old) at = (at + 1) & of->mask;
    of->slots[at] = NULL;
    of->used_slots--;
    /* What lies behind it may have been pushed there by it. */
    for (u64 next = (at + 1) & of->mask; of->slots[next] != NULL; next = (next + 1) & of->mask) {
        u64 home = slot_of(of, of->slots[next]->key);
        if (((next - home) & of->mask) >= ((next - at) & of->mask)) {
            of->slots[at] = of->slots[next];
            of->slots[next] = NULL;
            at = next;
        }
    }
}

static void drop_outside(arena *of) {
    while (of->outside != NULL) {
        chunk *old = of->outside;
        of->outside = old->next;
        arena_remove(of, old);
        free(old);
    }
}

/* Frees the place of the oldest chunk. The present sample may need it: then it is copied out of the ring. 0 without memory. */
static int drop_oldest(arena *of) {
    chunk *oldest = (chunk *)(of->memory + of->tail), *copy = NULL;
    if (oldest->stamp == of->stamp) {
        copy = malloc((size_t)oldest->bytes);
        if (copy == NULL) return 0;
        memcpy(copy, oldest, (size_t)oldest->bytes);
        for (i64 k = 0; k < copy->tensors; k++)
            copy->tensor[k].data = (byte *)copy + (oldest->tensor[k].data - (byte *)oldest);
    }
    arena_remove(of, oldest);
    if (copy != NULL) {
        arena_insert(of, copy); /* into the slot that was just freed */
        copy->next = of->outside;
        of->outside = copy;
    }
    of->tail += oldest->bytes;
    of->count--;
    if (of->count == 0) {
        of->head = of->tail = of->wrap = 0;
    } else if (of->tail == of->wrap) {
        of->tail = of->wrap = 0;
    }
    return 1;
}

/* Where the next chunk of `bytes` goes; NULL when the ring is too small for it, or without memory.
 * In the ring, free bytes lie behind head up to the end and before tail (head >= tail), or between head and tail. */
static chunk *place_in_ring(arena *of, i64 bytes) {
    if (bytes > of->size) return NULL;
    for (;;) {
        if (of->wrap == 0) { /* the chunks lie in [tail, head) */
            if (of->size - of->head >= bytes) return (chunk *)(of->memory + of->head);
            if (of->tail >= bytes && of->tail > 0) {
                of->wrap = of->head;
                of->head = 0;
                return (chunk *)of->memory;
            }
        } else if (of->tail - of->head >= bytes) { /* in [tail, wrap) and [0, head) */
            return (chunk *)(of->memory + of->head);
        }
        if (!drop_oldest(of)) return NULL;
    }
}

static void commit(arena *of, chunk *new) {
    of->head = (byte *)new - of->memory + new->bytes;
    of->count++;
}

static void arena_clear(arena *of) {
    drop_outside(of);
    memset(of->slots, 0, (of->mask + 1) * sizeof *of->slots);
    of->used_slots = of->count = 0;
    of->head = of->tail = of->wrap = 0;
    of->first_kind += of->kind_count;
    of->kind_count = 0;
}

void arena_close(arena *of) {
    if (of == NULL) return;
    if (of->slots != NULL) drop_outside(of);
    free(of->memory);
    free(of->slots);
    free(of->kinds);
    free(of);
}

arena *arena_open(i64 bytes) {
    arena *new = calloc(1, sizeof *new);
    if (new == NULL) return NULL;
    new->size = (bytes > 0 ? bytes : 0) / ALIGNMENT * ALIGNMENT;
    new->memory = malloc((size_t)new->size + 1); /* the system gives it page by page, when it is first written */
    new->mask = 1023;
    new->slots = calloc(new->mask + 1, sizeof *new->slots);
    new->kinds = malloc(MAX_KINDS * sizeof *new->kinds);
    if (new->memory == NULL || new->slots == NULL || new->kinds == NULL) {
        arena_close(new);
        return NULL;
    }
    return new;
}

/* dtype, number of axes, and their sizes of the rows of a kind; the return value is the bytes of a row. */
i64 arena_kind(const arena *of, i64 number, i64 *dtype, i64 *dims, i64 *sizes) {
    i64 at = number - of->first_kind;
    if (at < 0 || at >= of->kind_count) return UNUSUAL;
    const kind *found = &of->kinds[at];
    *dtype = found->dtype;
    *dims = found->dims;
    memcpy(sizes, found->sizes, (size_t)found->dims * sizeof *sizes);
    return found->row_bytes;
}

static i64 kind_number(arena *of, const kind *wanted) {
    for (i64 at = 0; at < of->kind_count; at++) {
        const kind *one = &of->kinds[at];
        if (one->dtype == wanted->dtype && one->dims == wanted->dims && memcmp(one->sizes, wanted->sizes, (size_t)wanted->dims * sizeof(i64)) == 0)
            return at;
    }
    if (of->kind_count == MAX_KINDS) return UNUSUAL;
    of->kinds[of->kind_count] = *wanted;
    return of->kind_count++;
}

/* ---------------------------------------------------------------- a chunk */

typedef struct {
    kind kind;
    i64 rows, bytes;
    span content; /* without the size of the snappy block */
} pending;

/* A Tensor message -> what it takes to decode it. */
static int read_tensor(span in, pending *out) {
    field one;
    int more, has_shape = 0, dims = 0;
    i64 sizes[MAX_DIMS + 1];
    memset(out, 0, sizeof *out);
    while ((more = next_field(&in, &one)) > 0) {
        if (one.number == 1 && one.kind == VARINT) {
            out->kind.dtype = (i64)one.value;
        } else if (one.number == 4 && one.kind == BYTES) {
            out->content = one.bytes;
        } else if (one.number == 2 && one.kind == BYTES) {
            if (has_shape++) return UNUSUAL;
            span shape = one.bytes;
            while ((more = next_field(&shape, &one)) > 0) {
                if (one.number != 2) continue;
                if (one.kind != BYTES || dims > MAX_DIMS) return UNUSUAL;
                span dim = one.bytes;
                i64 size = 0;
                while ((more = next_field(&dim, &one)) > 0)
                    if (one.number == 1 && one.kind == VARINT) size = (i64)one.value;
                if (more < 0 || size < 0 || size > MAX_TENSOR_BYTES) return UNUSUAL;
                sizes[dims++] = size;
            }
            if (more < 0) return UNUSUAL;
        } else if (one.number <= 4 && one.number != 3) {
            return UNUSUAL;
        }
    }
    i64 bytes = item_bytes(out->kind.dtype), values = 1;
    if (more < 0 || bytes == 0) return UNUSUAL;
    for (int at = 0; at < dims; at++) {
        values *= sizes[at];
        if (values > MAX_TENSOR_BYTES) return UNUSUAL;
        if (at > 0) out->kind.sizes[at - 1] = sizes[at];
    }
    out->rows = dims ? sizes[0] : 0;
    out->kind.dims = dims ? dims - 1 : 0;
    out->kind.values = 1;
    for (i64 at = 0; at < out->kind.dims; at++) {
        out->kind.values *= out->kind.sizes[at];
        if (out->kind.values > MAX_TENSOR_BYTES) return UNUSUAL;
    }
    out->kind.row_bytes = out->kind.values * bytes;
    if (out->kind.dtype == DT_STRING) {
        i64 content = out->content.end - out->content.at;
        if (values > content) return UNUSUAL;
        out->bytes = (values + 1) * 8 + content;
        return 1;
    }
    u64 size;
    i64 block = out->content.end - out->content.at;
    if (!snappy_size(&out->content, &size)) return UNUSUAL;
    if (values * bytes > MAX_TENSOR_BYTES || (i64)size != values * bytes || (i64)size > MAX_EXPANSION * block) return UNUSUAL;
    out->bytes = (i64)size;
    return 1;
}

static int decode_text(const pending *from, byte *data, i64 values) {
    span in = from->content;
    i64 at = 0;
    for (i64 k = 0; k < values; k++) {
        u64 length;
        memcpy(data + 8 * k, &at, 8);
        if (!read_varint(&in, &length) || length > (u64)MAX_TENSOR_BYTES) return 0;
        at += (i64)length;
        if (at > MAX_TENSOR_BYTES) return 0;
    }
    memcpy(data + 8 * values, &at, 8);
    if (at != in.end - in.at) return 0;
    if (at) memcpy(data + 8 * (values + 1), in.at, (size_t)at);
    return 1;
}

/* Sums that wrap, row by row. */
static void add_up(byte *data, i64 rows, i64 values, i64 bytes) {
#define ADD_UP(type)                                                                        \
    do {                                                                                    \
        type *now = (type *)data + values;                                                  \
        for (i64 at = 0; at < (rows - 1) * values; at++) now[at] = (type)(now[at] + now[at - values]); \
    } while (0)
    if (rows < 2) return;
    switch (bytes) {
    case 1: ADD_UP(uint8_t); break;
    case 2: ADD_UP(uint16_t); break;
    case 4: ADD_UP(uint32_t); break;
    default: ADD_UP(uint64_t);
    }
#undef ADD_UP
}

static i64 aligned(i64 bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* The Tensor messages of a chunk -> what it takes to decode them, behind those that `work` has. */
static int read_chunk(span data, list *work) {
    field one;
    int more;
    while ((more = next_field(&data, &one)) > 0) {
        if (one.number != 1) continue;
        if (one.kind != BYTES) return UNUSUAL;
        pending *next = list_add(work, sizeof *next);
        if (next == NULL) return NO_MEMORY;
        if (read_tensor(one.bytes, next) < 0) return UNUSUAL;
    }
    return more < 0 ? UNUSUAL : 1;
}

static i64 first_bytes(i64 tensors) { return aligned((i64)sizeof(chunk) + tensors * (i64)sizeof(tensor)); }

static i64 chunk_bytes(const pending *all, i64 count) {
    i64 bytes = first_bytes(count);
    for (i64 k = 0; k < count; k++) bytes += aligned(all[k].bytes);
    return bytes;
}

/* Everything of a chunk but its rows; 0 when there are too many kinds. */
static int describe_chunk(arena *of, chunk *new, u64 key, const pending *all, i64 count, i64 bytes) {
    byte *at = (byte *)new + first_bytes(count);
    new->key = key;
    new->bytes = bytes;
    new->stamp = of->stamp;
    new->tensors = count;
    for (i64 k = 0; k < count; k++) {
        tensor *to = &new->tensor[k];
        to->rows = all[k].rows;
        to->data = at;
        if ((to->kind = kind_number(of, &all[k].kind)) < 0) return 0;
        at += aligned(all[k].bytes);
    }
    return 1;
}

/* The rows of a chunk that is described. */
static int decode_chunk(chunk *to, const pending *all, int is_delta) {
    for (i64 k = 0; k < to->tensors; k++) {
        const pending *from = &all[k];
        byte *data = to->tensor[k].data;
        if (from->kind.dtype == DT_STRING) {
            if (!decode_text(from, data, (from->bytes - (from->content.end - from->content.at)) / 8 - 1)) return 0;
            continue;
        }
        if (!snappy_decode(from->content, data, from->bytes)) return 0;
        if (is_delta && from->kind.dims > 0 && is_integer(from->kind.dtype))
            add_up(data, from->rows, from->kind.values, item_bytes(from->kind.dtype));
    }
    return 1;
}

/* Takes back the place that `place_in_ring` gave last. */
static void give_back(arena *of, const chunk *new) {
    if (of->wrap && (const byte *)new == of->memory) { /* the ring was wrapped for it */
        of->head = of->wrap;
        of->wrap = 0;
    }
}

/* Decodes a chunk into the arena. `work`: of `pending`, reused. */
static int load_chunk(arena *of, u64 key, int is_delta, span data, list *work) {
    work->count = 0;
    int got = read_chunk(data, work);
    if (got < 0) return got;
    i64 bytes = chunk_bytes(work->items, work->count);
    chunk *new = place_in_ring(of, bytes);
    int is_outside = new == NULL;
    if (is_outside && (new = malloc((size_t)bytes)) == NULL) return NO_MEMORY;
    int is_valid = describe_chunk(of, new, key, work->items, work->count, bytes) && decode_chunk(new, work->items, is_delta);
    if (!is_valid || !arena_insert(of, new)) {
        if (is_outside)
            free(new);
        else
            give_back(of, new);
        return is_valid ? NO_MEMORY : UNUSUAL;
    }
    if (is_outside) {
        new->next = of->outside;
        of->outside = new;
    } else {
        commit(of, new);
    }
    return 1;
}

/* ---------------------------------------------------------------- a response */

typedef struct {
    u64 key;
    i64 offset, length, index;
} slice;

typedef struct {
    i64 first_slice, slices, rows;
    int is_squeezed;
} column;

typedef struct {
    u64 key;
    int is_delta;
    span data;
} sent;

typedef struct {
    u64 key;
    double probability, priority;
    i64 table_size, times_sampled;
    i64 first_column, columns, first_chunk, chunks;
    i64 begin, end; /* its bytes in the response */
} sample;

/* A chunk that has its place and is not decoded yet. */
typedef struct {
    chunk *to;
    i64 first; /* of its `pending` */
    int is_delta;
} job;

typedef struct {
    list samples, columns, slices, chunks, work, text, jobs, job_work;
    i64 rows, next_job;
} reader;

/* Which source this was made of: the caller refuses a library of another one. */
i64 native_source(void) { return NATIVE_SOURCE; }

reader *reader_open(void) { return calloc(1, sizeof(reader)); }

void reader_close(reader *of) {
    if (of == NULL) return;
    list *all[] = {&of->samples, &of->columns, &of->slices, &of->chunks, &of->work, &of->text, &of->jobs, &of->job_work};
    for (int k = 0; k < 8; k++) free(all[k]->items);
    free(of);
}

/* Of an item: as `plain.most_bytes`. */
#define MAX_ANY_SAMPLE_BYTES ((i64)1 << 28)
#define MAX_BYTES_PER_BYTE 4096
#define MAX_ROWS ((i64)1 << 28) /* of a response: a few bytes can request any number, by the same rows again and again */

static int read_slice(span in, slice *out) {
    field one;
    int more;
    memset(out, 0, sizeof *out);
    while ((more = next_field(&in, &one)) > 0) {
        if (one.kind != VARINT) return UNUSUAL;
        if (one.number == 1) {
            out->key = one.value;
        } else {
            if (one.value > INT32_MAX) return UNUSUAL;
            if (one.number == 2) out->offset = (i64)one.value;
            if (one.number == 3) out->length = (i64)one.value;
            if (one.number == 4) out->index = (i64)one.value;
        }
    }
    return more < 0 || out->length < 1 ? UNUSUAL : 1;
}

static int read_trajectory(reader *of, span in, sample *out) {
    field one;
    int more;
    out->first_column = of->columns.count;
    while ((more = next_field(&in, &one)) > 0) {
        if (one.number != 1 || one.kind != BYTES) return UNUSUAL;
        span inner = one.bytes;
        column *now = list_add(&of->columns, sizeof *now);
        if (now == NULL) return NO_MEMORY;
        now->first_slice = of->slices.count;
        now->slices = now->rows = now->is_squeezed = 0;
        while ((more = next_field(&inner, &one)) > 0) {
            if (one.number == 1 && one.kind == BYTES) {
                slice *next = list_add(&of->slices, sizeof *next);
                if (next == NULL) return NO_MEMORY;
                if (read_slice(one.bytes, next) < 0) return UNUSUAL;
                now->rows += next->length;
                now->slices++;
            } else if (one.number == 2 && one.kind == VARINT) {
                now->is_squeezed = one.value != 0;
            } else {
                return UNUSUAL;
            }
        }
        of->rows += now->rows;
        if (more < 0 || now->slices == 0 || of->rows > MAX_ROWS || (now->is_squeezed && now->rows != 1)) return UNUSUAL;
    }
    out->columns = of->columns.count - out->first_column;
    return more < 0 || out->columns == 0 ? UNUSUAL : 1;
}

static int read_info(reader *of, span in, sample *out) {
    field one;
    int more, has_item = 0, has_trajectory = 0, got;
    while ((more = next_field(&in, &one)) > 0) {
        if (one.number == 2 && one.kind == DOUBLE) {
            out->probability = as_double(one.value);
        } else if (one.number == 3 && one.kind == VARINT) {
            out->table_size = (i64)one.value;
        } else if (one.number == 1 && one.kind == BYTES) {
            if (has_item++) return UNUSUAL;
            span item = one.bytes;
            while ((more = next_field(&item, &one)) > 0) {
                if (one.number == 1 && one.kind == VARINT) {
                    out->key = one.value;
                } else if (one.number == 5 && one.kind == DOUBLE) {
                    out->priority = as_double(one.value);
                } else if (one.number == 6 && one.kind == VARINT) {
                    out->times_sampled = (int32_t)one.value;
                } else if (one.number == 8 && one.kind == BYTES) {
                    if (has_trajectory++) return UNUSUAL;
                    if ((got = read_trajectory(of, one.bytes, out)) < 0) return got;
                } else if (one.number == 1 || one.number == 5 || one.number == 6 || one.number == 8) {
                    return UNUSUAL;
                }
            }
            if (more < 0) return UNUSUAL;
        } else if (one.number <= 3) {
            return UNUSUAL;
        }
    }
    return more < 0 || !has_trajectory ? UNUSUAL : 1;
}

static int read_sent(span in, sent *out) {
    field one;
    int more, has_data = 0;
    memset(out, 0, sizeof *out);
    while ((more = next_field(&in, &one)) > 0) {
        if (one.number == 1 && one.kind == VARINT) {
            out->key = one.value;
        } else if (one.number == 4 && one.kind == VARINT) {
            out->is_delta = one.value != 0;
        } else if (one.number == 5 && one.kind == BYTES) {
            if (has_data++) return UNUSUAL;
            out->data = one.bytes;
        } else if (one.number == 1 || one.number == 4 || one.number == 5) {
            return UNUSUAL;
        }
    }
    return more < 0 ? UNUSUAL : 1;
}

/* Reads the samples in bytes [begin, end) of a response. `whole`: where the last whole sample ends; a part of one more may
 * follow. Returns the number of whole samples. The bytes must stay until the last call for these samples. */
i64 reader_parse(reader *of, const byte *data, i64 begin, i64 end, i64 *whole) {
    trim(&of->work, sizeof(pending));
    trim(&of->job_work, sizeof(pending));
    trim(&of->text, 1);
    span in = {data + begin, data + end};
    field entry, one;
    int more, got, is_begun = 0;
    sample now;
    of->samples.count = of->columns.count = of->slices.count = of->chunks.count = of->rows = 0;
    *whole = begin;
    memset(&now, 0, sizeof now);
    while ((more = next_field(&in, &entry)) > 0) {
        if (entry.number != 1 || entry.kind != BYTES) return UNUSUAL;
        span inner = entry.bytes;
        int is_last = 0, has_info = 0;
        while ((more = next_field(&inner, &one)) > 0) {
            if (one.number == 1 && one.kind == BYTES) {
                if (has_info++ || is_begun++) return UNUSUAL;
                memset(&now, 0, sizeof now);
                now.begin = *whole;
                now.first_chunk = of->chunks.count;
                if ((got = read_info(of, one.bytes, &now)) < 0) return got;
            } else if (one.number == 2 && one.kind == BYTES) {
                sent *next = list_add(&of->chunks, sizeof *next);
                if (next == NULL) return NO_MEMORY;
                if (read_sent(one.bytes, next) < 0) return UNUSUAL;
            } else if (one.number == 3 && one.kind == VARINT) {
                is_last = one.value != 0;
            } else if (one.number <= 3) {
                return UNUSUAL;
            }
        }
        if (more < 0 || !is_begun) return UNUSUAL;
        if (is_last) {
            sample *next = list_add(&of->samples, sizeof *next);
            if (next == NULL) return NO_MEMORY;
            *whole = now.end = in.at - data;
            now.chunks = of->chunks.count - now.first_chunk;
            *next = now;
            is_begun = 0;
        }
    }
    return more < 0 ? UNUSUAL : of->samples.count;
}

/* Where the first sample that ends in [begin, end) does; NO_END when none does. */
i64 reader_first_end(const byte *data, i64 begin, i64 end) {
    span in = {data + begin, data + end};
    field entry, one;
    int more;
    while ((more = next_field(&in, &entry)) > 0) {
        if (entry.number != 1 || entry.kind != BYTES) return UNUSUAL;
        span inner = entry.bytes;
        while ((more = next_field(&inner, &one)) > 0)
            if (one.number == 3 && one.kind == VARINT && one.value) return in.at - data;
        if (more < 0) return UNUSUAL;
    }
    return more < 0 ? UNUSUAL : NO_END;
}

/* Where the bytes of a sample are in the response. */
void reader_span(const reader *of, i64 number, i64 *begin, i64 *end) {
    const sample *one = (const sample *)of->samples.items + number;
    *begin = one->begin;
    *end = one->end;
}

/* Number of samples from `first` on, at most `limit`, with as many columns and rows as the first. */
i64 reader_alike(const reader *of, i64 first, i64 limit) {
    const sample *all = of->samples.items;
    const column *columns = of->columns.items;
    i64 end = of->samples.count - first < limit ? of->samples.count : first + limit, at = first + 1;
    for (; at < end; at++) {
        if (all[at].columns != all[first].columns) break;
        i64 k = 0;
        while (k < all[first].columns && columns[all[at].first_column + k].rows == columns[all[first].first_column + k].rows) k++;
        if (k < all[first].columns) break;
    }
    return at - first;
}

/* Loads the chunks of a sample, so that none of them is dropped before the next sample is loaded. A sample brings all of
 * its chunks; one that another brought earlier is the same, because a key is never given twice. */
static int load_sample(reader *of, arena *in, const sample *one) {
    const column *columns = (const column *)of->columns.items + one->first_column;
    const slice *slices = of->slices.items;
    const sent *chunks = (const sent *)of->chunks.items + one->first_chunk;
    drop_outside(in);
    if (in->kind_count == MAX_KINDS) arena_clear(in);
    in->stamp++;
    int is_missing = 0;
    u64 last = 0;
    const column *end = columns + one->columns;
    for (const column *now = columns; now < end; now++) {
        const slice *stop = slices + now->first_slice + now->slices;
        for (const slice *piece = slices + now->first_slice; piece < stop; piece++) {
            if (piece->key == last && now > columns) continue; /* a column mostly reads the chunks of the one before */
            last = piece->key;
            chunk *found = arena_find(in, piece->key);
            if (found == NULL)
                is_missing = 1;
            else
                found->stamp = in->stamp;
        }
    }
    if (!is_missing) return 1;
    for (i64 k = 0; k < one->chunks; k++) {
        if (arena_find(in, chunks[k].key) != NULL) continue;
        int got = load_chunk(in, chunks[k].key, chunks[k].is_delta, chunks[k].data, &of->work);
        if (got < 0) return got;
    }
    return 1;
}

/* Gives the missing chunks of the samples [first, first + count) a place in the ring, as long as they take no more than a
 * quarter of it: so none of them makes way for another before it is copied. Those that are unusual or large are left to
 * `load_sample`. `bytes`: of the chunks to decode. Returns the number of samples looked at.
 * `reader_decode` must have returned before any other function is called. */
i64 reader_place(reader *of, arena *in, i64 first, i64 count, i64 *bytes) {
    const sample *samples = (const sample *)of->samples.items + first;
    const sent *chunks = of->chunks.items;
    of->jobs.count = of->job_work.count = of->next_job = *bytes = 0;
    drop_outside(in);
    if (in->kind_count == MAX_KINDS) arena_clear(in);
    in->stamp++;
    for (i64 at = 0; at < count; at++) {
        for (i64 k = samples[at].first_chunk; k < samples[at].first_chunk + samples[at].chunks; k++) {
            if (arena_find(in, chunks[k].key) != NULL) continue;
            i64 begun = of->job_work.count;
            int got = read_chunk(chunks[k].data, &of->job_work);
            if (got == NO_MEMORY) return NO_MEMORY;
            const pending *all = (const pending *)of->job_work.items + begun;
            i64 tensors = of->job_work.count - begun, size = got < 0 ? 0 : chunk_bytes(all, tensors);
            if (got < 0 || size > in->size / 8) {
                of->job_work.count = begun;
                continue;
            }
            if (*bytes + size > in->size / 4) {
                of->job_work.count = begun;
                return at ? at : 1;
            }
            chunk *new = place_in_ring(in, size);
            if (new == NULL) return NO_MEMORY;
            if (!describe_chunk(in, new, chunks[k].key, all, tensors, size)) {
                give_back(in, new);
                of->job_work.count = begun;
                continue;
            }
            job *next = list_add(&of->jobs, sizeof *next);
            if (next == NULL || !arena_insert(in, new)) {
                if (next != NULL) of->jobs.count--;
                give_back(in, new);
                return NO_MEMORY;
            }
            commit(in, new);
            next->to = new;
            next->first = begun;
            next->is_delta = chunks[k].is_delta;
            *bytes += size;
        }
    }
    return count;
}

/* Decodes chunks that were placed, until every one is decoded or another thread is at it. One that cannot be decoded has no
 * tensors, so samples that need it are unusual. */
void reader_decode(reader *of) {
    const job *jobs = of->jobs.items;
    const pending *work = of->job_work.items;
    for (;;) {
        i64 at = __atomic_fetch_add(&of->next_job, 1, __ATOMIC_RELAXED);
        if (at >= of->jobs.count) return;
        if (!decode_chunk(jobs[at].to, work + jobs[at].first, jobs[at].is_delta)) jobs[at].to->tensors = 0;
    }
}

/* The kind of the rows of a column; UNUSUAL when a slice points to what is not there, or the slices differ in it. */
static i64 column_kind(const reader *of, const arena *in, const column *one) {
    const slice *piece = (const slice *)of->slices.items + one->first_slice, *stop = piece + one->slices;
    i64 found = UNUSUAL;
    for (; piece < stop; piece++) {
        const chunk *holder = arena_find(in, piece->key);
        if (holder == NULL || piece->index >= holder->tensors) return UNUSUAL;
        const tensor *rows = &holder->tensor[piece->index];
        if (piece->offset + piece->length > rows->rows) return UNUSUAL;
        if (found >= 0 && rows->kind != found) return UNUSUAL;
        found = rows->kind;
    }
    return found;
}

/* Loads a sample and gives, by column, the number of the rows' kind, the number of rows and whether the axis of rows is
 * dropped. Returns the number of columns, of which at most `room` were written. */
i64 reader_layout(reader *of, arena *in, i64 number, i64 room, i64 *kinds, i64 *rows, i64 *squeezed) {
    const sample *one = (const sample *)of->samples.items + number;
    const column *columns = (const column *)of->columns.items + one->first_column;
    int got = load_sample(of, in, one);
    if (got < 0) return got;
    i64 bytes = 0, most = MAX_ANY_SAMPLE_BYTES + MAX_BYTES_PER_BYTE * (one->end - one->begin);
    for (i64 k = 0; k < one->columns; k++) {
        i64 found = column_kind(of, in, &columns[k]);
        if (found < 0) return UNUSUAL;
        bytes += columns[k].rows * in->kinds[found].row_bytes;
        if (bytes > most) return UNUSUAL;
        if (k >= room) continue;
        kinds[k] = in->first_kind + found;
        rows[k] = columns[k].rows;
        squeezed[k] = columns[k].is_squeezed;
    }
    return one->columns;
}

#define MAX_TEXT ((i64)1 << 30) /* of one fill */

static int add_text(reader *of, const byte *from, i64 bytes) {
    if (bytes == 0) return 1;
    if (of->text.count + bytes > MAX_TEXT) return UNUSUAL;
    if (of->text.room - of->text.count < bytes) {
        i64 room = 2 * (of->text.count + bytes);
        void *items = realloc(of->text.items, (size_t)room);
        if (items == NULL) return NO_MEMORY;
        of->text.items = items;
        of->text.room = room;
    }
    memcpy((byte *)of->text.items + of->text.count, from, (size_t)bytes);
    of->text.count += bytes;
    return 1;
}

/* The spans of texts in the reader's text. */
static int copy_texts(reader *of, const tensor *from, i64 first, i64 count, i64 values, byte *out) {
    i64 all = from->rows * values, begin, end, start = of->text.count;
    memcpy(&begin, from->data + 8 * first * values, 8);
    memcpy(&end, from->data + 8 * (first + count) * values, 8);
    int got = add_text(of, from->data + 8 * (all + 1) + begin, end - begin);
    if (got < 0) return got;
    for (i64 k = 0; k < count * values; k++) {
        i64 pair[2];
        memcpy(pair, from->data + 8 * (first * values + k), 16);
        pair[0] += start - begin;
        pair[1] += start - begin;
        memcpy(out + 16 * k, pair, 16);
    }
    return 1;
}

/* Copies the rows of the samples [first, first + count) into the arrays of a batch, as long as they have its layout.
 *
 * outs: per column an array with a place of rows[k] rows for every sample; of text, pairs of int64: where it begins and
 * ends in `reader_text`. at: the place of the first sample. keys ... times: as SampleInfo has them.
 * Returns the number of samples copied, which is less than `count` when the next one is of another layout. */
i64 reader_fill(reader *of, arena *in, i64 first, i64 count, i64 columns, const i64 *kinds, const i64 *rows, const i64 *squeezed,
                byte **outs, i64 at, u64 *keys, double *probabilities, i64 *sizes, double *priorities, int32_t *times) {
    const slice *slices = of->slices.items;
    of->text.count = 0;
    for (i64 done = 0; done < count; done++) {
        const sample *one = (const sample *)of->samples.items + first + done;
        const column *own = (const column *)of->columns.items + one->first_column;
        int got = load_sample(of, in, one);
        if (got < 0) return done ? done : got;
        if (one->columns != columns) return done;
        for (i64 k = 0; k < columns; k++) {
            i64 found = column_kind(of, in, &own[k]);
            if (found < 0) return done ? done : UNUSUAL;
            if (found + in->first_kind != kinds[k] || own[k].rows != rows[k] || own[k].is_squeezed != squeezed[k]) return done;
        }
        i64 place = at + done;
        for (i64 k = 0; k < columns; k++) {
            const kind *of_rows = &in->kinds[kinds[k] - in->first_kind];
            i64 bytes = of_rows->row_bytes;
            byte *out = outs[k] + place * rows[k] * bytes;
            const slice *piece = slices + own[k].first_slice, *stop = piece + own[k].slices;
            for (; piece < stop; piece++) {
                const tensor *from = &arena_find(in, piece->key)->tensor[piece->index];
                if (of_rows->dtype == DT_STRING) {
                    if ((got = copy_texts(of, from, piece->offset, piece->length, of_rows->values, out)) < 0)
                        return done ? done : got;
                } else {
                    memcpy(out, from->data + piece->offset * bytes, (size_t)(piece->length * bytes));
                }
                out += piece->length * bytes;
            }
        }
        keys[place] = one->key;
        probabilities[place] = one->probability;
        sizes[place] = one->table_size;
        priorities[place] = one->priority;
        times[place] = (int32_t)one->times_sampled;
    }
    return count;
}

/* The texts of the last `reader_fill`. */
i64 reader_text(const reader *of, const byte **text) {
    *text = of->text.items;
    return of->text.count;
}

/* ---------------------------------------------------------------- trajectories alone */

/* Reads `count` FlatTrajectory messages that lie one after the other; ends: where each ends. Returns the number of slices;
 * `columns`: the number of columns. */
i64 trajectories_read(reader *of, const byte *data, const i64 *ends, i64 count, i64 *columns) {
    i64 begin = 0;
    of->samples.count = of->columns.count = of->slices.count = of->chunks.count = of->rows = 0;
    for (i64 at = 0; at < count; at++) {
        sample *next = list_add(&of->samples, sizeof *next);
        if (next == NULL) return NO_MEMORY;
        span in = {data + begin, data + ends[at]};
        of->rows = 0; /* none are copied */
        int got = read_trajectory(of, in, next);
        if (got < 0) return got;
        begin = ends[at];
    }
    *columns = of->columns.count;
    return of->slices.count;
}

/* What the last `trajectories_read` found: of each slice, of each column, and of each trajectory. */
void trajectories_get(const reader *of, u64 *keys, i64 *offsets, i64 *lengths, i64 *indexes, i64 *slice_counts, byte *squeezed,
                      i64 *column_counts) {
    const slice *slices = of->slices.items;
    const column *columns = of->columns.items;
    const sample *samples = of->samples.items;
    for (i64 k = 0; k < of->slices.count; k++) {
        keys[k] = slices[k].key;
        offsets[k] = slices[k].offset;
        lengths[k] = slices[k].length;
        indexes[k] = slices[k].index;
    }
    for (i64 k = 0; k < of->columns.count; k++) {
        slice_counts[k] = columns[k].slices;
        squeezed[k] = (byte)columns[k].is_squeezed;
    }
    for (i64 k = 0; k < of->samples.count; k++) column_counts[k] = samples[k].columns;
}
