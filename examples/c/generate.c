// Prefill and a greedy decode loop on IREE's runtime, without Python: token ids in, token ids out.
//
//   generate BUNDLE STEPS ID... [--target NAME] [--device local-task|local-sync]
//
// The bundle's manifest.json says all that is needed; no GGUF is parsed. Weights are mapped, not read.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "iree/io/file_handle.h"
#include "iree/io/parameter_index.h"
#include "iree/io/parameter_index_provider.h"
#include "iree/modules/io/parameters/module.h"
#include "iree/runtime/api.h"
#include "manifest.h"

// A value in memory that this program reads and writes, and the module too.
static const iree_hal_buffer_params_t HOST_VISIBLE = {
    .type = IREE_HAL_MEMORY_TYPE_HOST_LOCAL | IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
    .usage = IREE_HAL_BUFFER_USAGE_DEFAULT | IREE_HAL_BUFFER_USAGE_MAPPING,
};

// A type of caches: how many values a block has, and in how many elements of which type the module takes a block.
typedef struct {
  const char* name;
  int64_t block_values, block_elements;
  iree_hal_element_type_t element;
  size_t element_size;
} cache_type_t;

static const cache_type_t CACHE_TYPES[] = {
    {"f32", 1, 1, IREE_HAL_ELEMENT_TYPE_FLOAT_32, 4},
    {"f16", 1, 1, IREE_HAL_ELEMENT_TYPE_FLOAT_16, 2},
    {"q8_0", 32, 34, IREE_HAL_ELEMENT_TYPE_INT_8, 1},
};

static iree_status_t map_file(const weights_t* weights, iree_io_file_handle_t** handle) {
  int descriptor = open(weights->path, O_RDONLY);
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status)) {
    return iree_make_status(iree_status_code_from_errno(errno), "%s", weights->path);
  }
  if ((uint64_t)status.st_size != weights->size) {
    close(descriptor);
    return iree_make_status(IREE_STATUS_INVALID_ARGUMENT, "%s: not the file that was exported: %llu bytes, wanted %llu",
                            weights->path, (unsigned long long)status.st_size, (unsigned long long)weights->size);
  }
  void* bytes = mmap(NULL, weights->size, PROT_READ, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (bytes == MAP_FAILED) return iree_make_status(iree_status_code_from_errno(errno), "%s", weights->path);
  // the mapping lives as long as the process
  return iree_io_file_handle_wrap_host_allocation(IREE_IO_FILE_ACCESS_READ, iree_make_byte_span(bytes, weights->size),
                                                  iree_io_file_handle_release_callback_null(),
                                                  iree_allocator_system(), handle);
}

// The module "io_parameters", which gives the program's parameters of the scope "model" by their names.
static iree_status_t make_parameters(const manifest_t* m, iree_vm_instance_t* instance, iree_vm_module_t** module) {
  iree_allocator_t host = iree_allocator_system();
  iree_io_parameter_index_t* index = NULL;
  iree_io_parameter_provider_t* provider = NULL;
  iree_io_file_handle_t** files = calloc(m->weights_count, sizeof(*files));
  iree_status_t status = files ? iree_io_parameter_index_create(host, &index)
                               : iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "no memory for file handles");
  for (size_t n = 0; iree_status_is_ok(status) && n < m->weights_count; ++n) {
    status = map_file(&m->weights[n], &files[n]);
  }
  for (size_t n = 0; iree_status_is_ok(status) && n < m->parameter_count; ++n) {
    const parameter_t* parameter = &m->parameters[n];
    iree_io_parameter_index_entry_t entry = {
        .key = iree_make_cstring_view(parameter->name),
        .length = parameter->length,
        .type = IREE_IO_PARAMETER_INDEX_ENTRY_STORAGE_TYPE_FILE,
        .storage.file = {.handle = files[parameter->file], .offset = parameter->offset},
    };
    status = iree_io_parameter_index_add(index, &entry);
  }
  if (iree_status_is_ok(status)) {
    status = iree_io_parameter_index_provider_create(
        iree_make_cstring_view("model"), index, IREE_IO_PARAMETER_INDEX_PROVIDER_DEFAULT_MAX_CONCURRENT_OPERATIONS,
        host, &provider);
  }
  if (iree_status_is_ok(status)) status = iree_io_parameters_module_create(instance, 1, &provider, host, module);
  iree_io_parameter_provider_release(provider);
  iree_io_parameter_index_release(index);
  for (size_t n = 0; files && n < m->weights_count; ++n) iree_io_file_handle_release(files[n]);
  free(files);
  return status;
}

// A session with the modules that a program needs in the order of their use: HAL, parameters, the program.
static iree_status_t open_session(const manifest_t* m, const char* driver, iree_runtime_session_t** session) {
  iree_allocator_t host = iree_allocator_system();
  iree_runtime_instance_options_t instance_options;
  iree_runtime_instance_options_initialize(&instance_options);
  iree_runtime_instance_options_use_all_available_drivers(&instance_options);
  iree_runtime_session_options_t session_options;
  iree_runtime_session_options_initialize(&session_options);

  iree_runtime_instance_t* instance = NULL;
  iree_hal_device_t* device = NULL;
  iree_vm_module_t* parameters = NULL;
  iree_status_t status = iree_runtime_instance_create(&instance_options, host, &instance);
  if (iree_status_is_ok(status)) {
    status = iree_runtime_instance_try_create_default_device(instance, iree_make_cstring_view(driver), &device);
  }
  if (iree_status_is_ok(status)) {
    status = iree_runtime_session_create_with_device(instance, &session_options, device, host, session);
  }
  if (iree_status_is_ok(status)) {
    status = make_parameters(m, iree_runtime_instance_vm_instance(instance), &parameters);
  }
  if (iree_status_is_ok(status)) status = iree_runtime_session_append_module(*session, parameters);
  if (iree_status_is_ok(status)) {
    status = iree_runtime_session_append_bytecode_module_from_file(*session, m->module);
  }
  iree_vm_module_release(parameters);
  iree_hal_device_release(device);
  iree_runtime_instance_release(instance);
  return status;
}

// A cache of zeros: all positions of the sequence, or of a window's ring the window and the tokens of one call.
static iree_status_t make_cache(iree_runtime_session_t* session, const cache_t* cache, int64_t prompt, int64_t length,
                                iree_hal_buffer_view_t** view) {
  const cache_type_t* type = NULL;
  for (size_t n = 0; n < IREE_ARRAYSIZE(CACHE_TYPES); ++n) {
    if (!strcmp(cache->dtype, CACHE_TYPES[n].name)) type = &CACHE_TYPES[n];
  }
  if (!type) return iree_make_status(IREE_STATUS_UNIMPLEMENTED, "caches of type %s", cache->dtype);
  int64_t most = cache->window ? cache->window + prompt : length;
  iree_hal_dim_t shape[1 + MAX_RANK] = {(iree_hal_dim_t)(cache->fixed_rows ? cache->fixed_rows
                                                         : most < length   ? most
                                                                           : length)};
  for (int n = 0; n < cache->rank; ++n) shape[1 + n] = (iree_hal_dim_t)cache->row[n];
  iree_hal_dim_t* last = &shape[cache->rank];
  *last = *last / (iree_hal_dim_t)type->block_values * (iree_hal_dim_t)type->block_elements;
  iree_device_size_t bytes = type->element_size;
  for (int n = 0; n <= cache->rank; ++n) {
    if (!iree_device_size_checked_mul(bytes, (iree_device_size_t)shape[n], &bytes)) {
      return iree_make_status(IREE_STATUS_OUT_OF_RANGE, "a cache that is too long");
    }
  }
  iree_hal_buffer_t* buffer = NULL;
  iree_status_t status = iree_hal_allocator_allocate_buffer(iree_runtime_session_device_allocator(session),
                                                            HOST_VISIBLE, bytes, &buffer);
  if (iree_status_is_ok(status)) status = iree_hal_buffer_map_zero(buffer, 0, bytes);
  if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_create(buffer, (iree_host_size_t)cache->rank + 1, shape, type->element,
                                         IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, iree_allocator_system(), view);
  }
  iree_hal_buffer_release(buffer);
  return status;
}

// Calls an entry point with tokens that begin at a position; caches are updated in place.
// `result` gets the first of what it gives, `bytes` long: logits, or of decode_greedy the likeliest token.
static iree_status_t run(iree_runtime_session_t* session, const char* entry, const int32_t* tokens, size_t count,
                          int32_t position, iree_hal_buffer_view_t* const* caches, size_t cache_count, void* result,
                          size_t bytes) {
  iree_runtime_call_t call;
  iree_status_t status = iree_runtime_call_initialize_by_name(session, iree_make_cstring_view(entry), &call);
  if (!iree_status_is_ok(status)) return status;
  iree_hal_buffer_view_t *ids = NULL, *first = NULL;
  iree_hal_dim_t shape[] = {count};
  iree_vm_value_t at = iree_vm_value_make_i32(position);
  status = iree_hal_buffer_view_allocate_buffer_copy(
      iree_runtime_session_device(session), iree_runtime_session_device_allocator(session), 1, shape,
      IREE_HAL_ELEMENT_TYPE_SINT_32, IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR, HOST_VISIBLE,
      iree_make_const_byte_span(tokens, count * sizeof(*tokens)), &ids);
  if (iree_status_is_ok(status)) status = iree_runtime_call_inputs_push_back_buffer_view(&call, ids);
  if (iree_status_is_ok(status)) status = iree_vm_list_push_value(iree_runtime_call_inputs(&call), &at);
  for (size_t n = 0; iree_status_is_ok(status) && n < cache_count; ++n) {
    status = iree_runtime_call_inputs_push_back_buffer_view(&call, caches[n]);
  }
  if (iree_status_is_ok(status)) status = iree_runtime_call_invoke(&call, 0);
  if (iree_status_is_ok(status)) status = iree_runtime_call_outputs_pop_front_buffer_view(&call, &first);
  if (iree_status_is_ok(status)) {
    status = iree_hal_buffer_view_byte_length(first) == bytes
                 ? iree_hal_buffer_map_read(iree_hal_buffer_view_buffer(first), 0, result, bytes)
                 : iree_make_status(IREE_STATUS_INTERNAL, "%s gives no %zu bytes", entry, bytes);
  }
  iree_hal_buffer_view_release(first);
  iree_hal_buffer_view_release(ids);
  iree_runtime_call_deinitialize(&call);
  return status;
}

static int32_t likeliest(const float* logits, int64_t count) {
  int64_t best = 0;
  for (int64_t n = 1; n < count; ++n) {
    if (logits[n] > logits[best]) best = n;
  }
  return (int32_t)best;
}

static bool is_stop(const manifest_t* m, int32_t token) {
  for (size_t n = 0; n < m->stop_token_count; ++n) {
    if (m->stop_tokens[n] == token) return true;
  }
  return false;
}

// Prints up to `steps` ids that follow the prompt, one a line, and ends before a stop token.
static iree_status_t generate(const manifest_t* m, const char* driver, const int32_t* prompt, size_t count,
                              size_t steps) {
  iree_runtime_session_t* session = NULL;
  iree_hal_buffer_view_t** caches = calloc(m->cache_count + 1, sizeof(*caches));
  float* logits = calloc((size_t)m->vocabulary, sizeof(*logits));
  iree_status_t status = caches && logits
                             ? open_session(m, driver, &session)
                             : iree_make_status(IREE_STATUS_RESOURCE_EXHAUSTED, "no memory for the logits");
  for (size_t n = 0; iree_status_is_ok(status) && n < m->cache_count; ++n) {
    status = make_cache(session, &m->caches[n], (int64_t)count, (int64_t)(count + steps), &caches[n]);
  }
  if (iree_status_is_ok(status)) {
    status = run(session, "ggufc.prefill", prompt, count, 0, caches, m->cache_count, logits,
                  (size_t)m->vocabulary * sizeof(*logits));
  }
  int32_t token = iree_status_is_ok(status) ? likeliest(logits, m->vocabulary) : 0;
  for (size_t n = 0; iree_status_is_ok(status) && n < steps && !is_stop(m, token); ++n) {
    printf("%d\n", token);
    fflush(stdout);
    int32_t position = (int32_t)(count + n);
    status = run(session, "ggufc.decode_greedy", &token, 1, position, caches, m->cache_count, &token, sizeof(token));
  }
  for (size_t n = 0; caches && n < m->cache_count; ++n) iree_hal_buffer_view_release(caches[n]);
  iree_runtime_session_release(session);
  free(caches);
  free(logits);
  return status;
}

static int usage(void) {
  fprintf(stderr, "generate BUNDLE STEPS ID... [--target NAME] [--device local-task|local-sync]\n");
  return 2;
}

// A whole number below `limit`; -1 for any other text.
static int64_t whole(const char* text, int64_t limit) {
  char* end = NULL;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  return errno || end == text || *end || number < 0 || number >= limit ? -1 : number;
}

int main(int argc, char** argv) {
  const char *target = NULL, *driver = "local-task", *words[2];
  int word_count = 0;
  int32_t* ids = calloc((size_t)argc, sizeof(*ids));
  size_t count = 0;
  if (!ids) return 1;
  for (int n = 1; n < argc; ++n) {
    if (!strcmp(argv[n], "--target") && n + 1 < argc) {
      target = argv[++n];
    } else if (!strcmp(argv[n], "--device") && n + 1 < argc) {
      driver = argv[++n];
    } else if (word_count < 2) {
      words[word_count++] = argv[n];
    } else {
      int64_t id = whole(argv[n], INT32_MAX);
      if (id < 0) return usage();
      ids[count++] = (int32_t)id;
    }
  }
  int64_t steps = word_count == 2 ? whole(words[1], INT32_MAX) : -1;
  if (steps < 0 || !count) return usage();

  manifest_t manifest;
  if (!manifest_read(words[0], target, &manifest)) return 2;
  // the module checks none of these
  for (size_t n = 0; n < count; ++n) {
    if (ids[n] >= manifest.vocabulary) {
      fprintf(stderr, "token %d is outside the vocabulary of %lld\n", ids[n], (long long)manifest.vocabulary);
      return 2;
    }
  }
  if ((int64_t)count + steps > manifest.context_length) {
    fprintf(stderr, "%zu tokens and %lld steps don't fit the context of %lld\n", count, (long long)steps,
            (long long)manifest.context_length);
    return 2;
  }
  iree_status_t status = generate(&manifest, driver, ids, count, (size_t)steps);
  manifest_free(&manifest);
  free(ids);
  if (iree_status_is_ok(status)) return 0;
  iree_status_fprint(stderr, status);
  iree_status_free(status);
  return 1;
}
