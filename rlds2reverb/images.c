/* Images of bytes -> another size, to the bit as `images.py` makes them by numpy: every output row (column) is a sum of input rows
 * (columns), times the weights of its taps, in float32 and in the same order.
 *
 * Taps without weight would add 0. Rows of them are left out, so that a row of the input is read only if an output needs it.
 *
 * The caller checks everything: all places are inside the image, `scratch` is as large as `resize_scratch` says.
 */

#include <stdint.h>
#include <string.h>

typedef int64_t i64;
typedef uint8_t byte;

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define FASTEST __attribute__((target_clones("avx2", "default"))) /* the same sums by wider registers; no fused ones */
#else
#define FASTEST
#endif

typedef float four __attribute__((vector_size(16)));

static inline four get_four(const float *at) {
    four values;
    memcpy(&values, at, sizeof values);
    return values;
}

typedef struct {
    i64 outputs, taps;
    const i64 *places;    /* [outputs, taps] */
    const float *weights; /* [outputs, taps] */
} axis;

i64 images_source(void) { return NATIVE_SOURCE; }

/* Floats of scratch: a row of the input, and as many made rows as one output row needs. */
i64 resize_scratch(i64 width, i64 out_width, i64 channels, i64 row_taps) {
    i64 longest = width > out_width ? width : out_width;
    return (longest * channels + 4) * (row_taps + 2) + row_taps;
}

static inline void add_row(const byte *in, float weight, float *out, i64 count, int is_first) {
    if (is_first)
        for (i64 at = 0; at < count; at++) out[at] = (float)in[at] * weight;
    else
        for (i64 at = 0; at < count; at++) out[at] += (float)in[at] * weight;
}

/* One row by the taps of its columns. Rows have room for four floats more than they hold. */
static inline void make_columns(const float *in, float *out, i64 channels, axis columns) {
    const i64 taps = columns.taps;
    for (i64 at = 0; at < columns.outputs; at++, out += channels) {
        const i64 *places = columns.places + at * taps;
        const float *weights = columns.weights + at * taps;
        if (channels == 3 || channels == 4) { /* four at once; of three colours, the fourth is overwritten by the next pixel */
            four sum = get_four(in + places[0] * channels) * weights[0];
            for (i64 tap = 1; tap < taps; tap++) /* what adds 0 is added: a branch costs more */
                sum += get_four(in + places[tap] * channels) * weights[tap];
            memcpy(out, &sum, sizeof sum);
        } else {
            for (i64 c = 0; c < channels; c++) {
                float sum = in[places[0] * channels + c] * weights[0];
                for (i64 tap = 1; tap < taps; tap++) sum += in[places[tap] * channels + c] * weights[tap];
                out[c] = sum;
            }
        }
    }
}

/* Rounds to the nearest, halves to even, and cuts to a byte. 2^23 + 2^22: where floats have no digits behind the point. */
static inline void put_row(const float *in, float factor, byte *out, i64 count) {
    const float whole = 12582912.0f;
    for (i64 at = 0; at < count; at++) {
        float value = in[at] * factor;
        value = (value + whole) - whole;
        value = value < 0 ? 0 : value > 255 ? 255 : value;
        out[at] = (byte)(int32_t)value;
    }
}

/* Columns first: `area`. A made row is kept until the slot is needed for another one. */
static inline void columns_first(const byte *in, i64 width, i64 channels, axis rows, axis columns, float factor, float *scratch, byte *out) {
    i64 longest = width > columns.outputs ? width : columns.outputs, room = longest * channels + 4, count = columns.outputs * channels;
    float *row = scratch, *sum = scratch + room, *made = scratch + 2 * room, *have = made + rows.taps * room;
    for (i64 slot = 0; slot < rows.taps; slot++) have[slot] = -1;
    memset(row + width * channels, 0, 4 * sizeof(float));
    for (i64 at = 0; at < rows.outputs; at++) {
        for (i64 tap = 0; tap < rows.taps; tap++) {
            i64 place = rows.places[at * rows.taps + tap], slot = place % rows.taps;
            float weight = rows.weights[at * rows.taps + tap], *here = made + slot * room;
            if (weight == 0 && tap) continue;
            if (have[slot] != (float)place) {
                add_row(in + place * width * channels, 1, row, width * channels, 1);
                make_columns(row, here, channels, columns);
                have[slot] = (float)place;
            }
            if (tap == 0)
                for (i64 x = 0; x < count; x++) sum[x] = here[x] * weight;
            else
                for (i64 x = 0; x < count; x++) sum[x] += here[x] * weight;
        }
        put_row(sum, factor, out + at * count, count);
    }
}

static inline void rows_first(const byte *in, i64 width, i64 channels, axis rows, axis columns, float factor, float *scratch, byte *out) {
    i64 longest = width > columns.outputs ? width : columns.outputs, room = longest * channels + 4, count = columns.outputs * channels;
    float *sum = scratch, *made = scratch + room;
    memset(sum + width * channels, 0, 4 * sizeof(float));
    for (i64 at = 0; at < rows.outputs; at++) {
        for (i64 tap = 0; tap < rows.taps; tap++) {
            float weight = rows.weights[at * rows.taps + tap];
            if (weight == 0 && tap) continue;
            add_row(in + rows.places[at * rows.taps + tap] * width * channels, weight, sum, width * channels, tap == 0);
        }
        make_columns(sum, made, channels, columns);
        put_row(made, factor, out + at * count, count);
    }
}

/* [height, width, channels] -> [rows, columns, channels]; `factor` is multiplied with last. */
FASTEST void resize_bytes(const byte *in, i64 width, i64 channels, i64 out_height, i64 out_width, const i64 *row_places,
                          const float *row_weights, i64 row_taps, const i64 *column_places, const float *column_weights,
                          i64 column_taps, float factor, i64 is_columns_first, float *scratch, byte *out) {
    axis rows = {out_height, row_taps, row_places, row_weights}, columns = {out_width, column_taps, column_places, column_weights};
    if (is_columns_first)
        columns_first(in, width, channels, rows, columns, factor, scratch, out);
    else
        rows_first(in, width, channels, rows, columns, factor, scratch, out);
}
