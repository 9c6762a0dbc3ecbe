#include "manifest.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "machine.h"

enum { MAX_MANIFEST = 64 << 20, MAX_NAME = 512 };

static bool refuse(const char* bundle, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s/manifest.json: ", bundle);
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  return false;
}

static char* read_text(const char* path) {
  FILE* file = fopen(path, "rb");
  if (!file) return NULL;
  char* text = NULL;
  long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
  if (size >= 0 && size <= MAX_MANIFEST && !fseek(file, 0, SEEK_SET) && (text = calloc((size_t)size + 1, 1))) {
    if (fread(text, 1, (size_t)size, file) != (size_t)size || memchr(text, 0, (size_t)size)) {
      free(text);
      text = NULL;
    }
  }
  fclose(file);
  return text;
}

// An array of as many zeroed elements as `container` has items; never NULL but when memory is out.
static void* items_of(json_t container, size_t element, size_t* count) {
  *count = json_count(container);
  return calloc(*count ? *count : 1, element);
}

static bool join(char path[MAX_PATH], const char* bundle, const char* name) {
  return !strchr(name, '/') && snprintf(path, MAX_PATH, "%s/%s", bundle, name) < MAX_PATH;
}

static bool read_caches(json_t given, manifest_t* m) {
  m->caches = items_of(given, sizeof(cache_t), &m->cache_count);
  if (!m->caches) return false;
  cache_t* cache = m->caches;
  for (json_t item = json_first(given); item; item = json_next(item), ++cache) {
    if (!json_string(json_get(item, "dtype"), cache->dtype, sizeof(cache->dtype))) return false;
    cache->window = json_whole(json_get(item, "window"));
    cache->fixed_rows = json_whole(json_get(item, "rows"));
    if (cache->window < 0 || cache->fixed_rows < 0) return false;
    json_t row = json_get(item, "row");
    for (json_t size = json_first(row); size; size = json_next(size)) {
      int64_t dim = json_whole(size);
      if (cache->rank == MAX_RANK || dim < 1 || dim > INT32_MAX) return false;
      cache->row[cache->rank++] = dim;
    }
    if (!cache->rank) return false;
  }
  return true;
}

// The files of the weights lie in the bundle under the names that `file` gives.
static bool read_weights(json_t given, const char* bundle, manifest_t* m) {
  char name[MAX_NAME];
  m->weights = items_of(given, sizeof(weights_t), &m->weights_count);
  if (!m->weights) return false;
  weights_t* weights = m->weights;
  for (json_t item = json_first(given); item; item = json_next(item), ++weights) {
    int64_t size = json_whole(json_get(item, "size"));
    if (size < 0 || !json_string(json_get(item, "file"), name, sizeof(name))) return false;
    if (!join(weights->path, bundle, name)) return false;
    weights->size = (uint64_t)size;
  }
  return m->weights_count > 0;
}

// {name: [file, offset, length], ...}, each range within its file.
static bool read_parameters(json_t given, manifest_t* m) {
  char name[MAX_NAME];
  m->parameters = items_of(given, sizeof(parameter_t), &m->parameter_count);
  if (!m->parameters) return false;
  parameter_t* parameter = m->parameters;
  for (json_t key = json_first(given); key; key = json_next(key), ++parameter) {
    json_t file = json_first(json_value(key)), offset = file ? json_next(file) : NULL;
    int64_t where[] = {json_whole(file), json_whole(offset), json_whole(offset ? json_next(offset) : NULL)};
    if (where[0] < 0 || (uint64_t)where[0] >= m->weights_count || where[1] < 0 || where[2] < 0) return false;
    uint64_t size = m->weights[where[0]].size;
    if ((uint64_t)where[1] > size || (uint64_t)where[2] > size - (uint64_t)where[1]) return false;
    if (!json_string(key, name, sizeof(name)) || !(parameter->name = strdup(name))) return false;
    parameter->file = (size_t)where[0];
    parameter->offset = (uint64_t)where[1];
    parameter->length = (uint64_t)where[2];
  }
  return true;
}

static bool read_stop_tokens(json_t given, manifest_t* m) {
  m->stop_tokens = items_of(given, sizeof(int64_t), &m->stop_token_count);
  if (!m->stop_tokens) return false;
  int64_t* token = m->stop_tokens;
  for (json_t item = json_first(given); item; item = json_next(item)) *token++ = json_whole(item);
  return true;
}

// How many features a target's code uses; -1 where this machine can't run it.
static int rank(json_t target) {
  char text[MAX_NAME];
  int used = 0;
  if (!json_string(json_get(target, "triple"), text, sizeof(text)) || !machine_is(text)) return -1;
  json_t features = json_get(target, "features");
  for (json_t item = json_first(features); item; item = json_next(item)) {
    if (!json_string(item, text, sizeof(text)) || !machine_has(text)) return -1;
    used += *text == '+';
  }
  return used;
}

static json_t best(json_t targets) {
  json_t chosen = NULL;
  int most = -1;
  for (json_t key = json_first(targets); key; key = json_next(key)) {
    int used = rank(json_value(key));
    if (used > most) {
      most = used;
      chosen = json_value(key);
    }
  }
  return chosen;
}

static bool read_module(json_t targets, const char* target, const char* bundle, manifest_t* m) {
  char name[MAX_NAME];
  json_t chosen = target ? json_get(targets, target) : best(targets);
  return json_string(json_get(chosen, "file"), name, sizeof(name)) && join(m->module, bundle, name);
}

static bool read_all(json_t root, const char* bundle, const char* target, manifest_t* m) {
  if (json_whole(json_get(root, "format")) != MANIFEST_FORMAT) {
    return refuse(bundle, "not of format %d, which this program reads; export the model again", MANIFEST_FORMAT);
  }
  json_t entries = json_get(root, "entries");
  if (!json_get(entries, "prefill") || !json_get(entries, "decode_greedy")) {
    return refuse(bundle, "the model has no prefill and decode_greedy; this program runs decoders");
  }
  m->context_length = json_whole(json_get(root, "context_length"));
  m->vocabulary = json_whole(json_get(root, "vocabulary"));
  if (m->context_length < 1 || m->vocabulary < 1) return refuse(bundle, "no context_length and vocabulary");
  if (!read_caches(json_get(root, "caches"), m)) return refuse(bundle, "damaged caches");
  if (!read_weights(json_get(root, "weights"), bundle, m)) return refuse(bundle, "damaged weights");
  if (!read_parameters(json_get(root, "parameters"), m)) return refuse(bundle, "damaged parameters");
  if (!read_stop_tokens(json_get(json_get(root, "tokenizer"), "stop_tokens"), m)) {
    return refuse(bundle, "damaged stop_tokens");
  }
  if (!read_module(json_get(root, "targets"), target, bundle, m)) {
    return target ? refuse(bundle, "no module for the target %s", target)
                  : refuse(bundle, "no module that this machine can run; --target names one all the same");
  }
  return true;
}

bool manifest_read(const char* bundle, const char* target, manifest_t* manifest) {
  char path[MAX_PATH];
  memset(manifest, 0, sizeof(*manifest));
  char* text = join(path, bundle, "manifest.json") ? read_text(path) : NULL;
  if (!text) return refuse(bundle, "can't be read");
  bool ok = read_all(json_parse(text), bundle, target, manifest);
  free(text);
  if (!ok) manifest_free(manifest);
  return ok;
}

void manifest_free(manifest_t* manifest) {
  for (size_t n = 0; manifest->parameters && n < manifest->parameter_count; ++n) free(manifest->parameters[n].name);
  free(manifest->parameters);
  free(manifest->caches);
  free(manifest->weights);
  free(manifest->stop_tokens);
  memset(manifest, 0, sizeof(*manifest));
}
