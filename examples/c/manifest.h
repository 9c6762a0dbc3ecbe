// What a program needs of a bundle's manifest.json to run its module.

#ifndef MANIFEST_H_
#define MANIFEST_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MANIFEST_FORMAT = 4, MAX_RANK = 4, MAX_PATH = 4096 };

// A cache of prefill and decode: rows of one shape, of which one is written for each position.
typedef struct {
  char dtype[8];       // "f32", "f16", or "q8_0", whose rows are bytes of blocks
  int rank;            // number of sizes in `row`
  int64_t row[MAX_RANK];
  int64_t window;      // positions that attention sees of it; 0: all
  int64_t fixed_rows;  // of a convolution's state; 0: it grows with the sequence
} cache_t;

// A parameter of the module: a range of bytes in one of the files with the weights.
typedef struct {
  char* name;
  size_t file;
  uint64_t offset, length;
} parameter_t;

typedef struct {
  char path[MAX_PATH];
  uint64_t size;
} weights_t;

typedef struct {
  cache_t* caches;
  size_t cache_count;
  parameter_t* parameters;
  size_t parameter_count;
  weights_t* weights;
  size_t weights_count;
  int64_t* stop_tokens;
  size_t stop_token_count;
  int64_t context_length, vocabulary;
  char module[MAX_PATH];
} manifest_t;

// Reads the manifest of `bundle` and chooses the module of `target`; NULL: of those that this machine can run, the one
// that uses the most of its features.
// On failure it says why on standard error, and the manifest is not to be used.
bool manifest_read(const char* bundle, const char* target, manifest_t* manifest);

void manifest_free(manifest_t* manifest);

#endif  // MANIFEST_H_
