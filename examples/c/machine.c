#include "machine.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

// The beginnings of the features that decide, but for AVX10, which stands for others.
static const char* const vectors[] = {"avx", "fma", "gfni", "neon", "dotprod", "i8mm", "sve"};

// What Linux calls those that it has another name for, but for underscores.
static const char* const linux_names[][2] = {{"neon", "asimd"}, {"dotprod", "asimddp"}};

bool machine_is(const char* triple) {
  struct utsname here;
  size_t length = strcspn(triple, "-");
  return !uname(&here) && strlen(here.machine) == length && !strncmp(here.machine, triple, length);
}

static bool decides(const char* name) {
  for (size_t n = 0; n < sizeof(vectors) / sizeof(*vectors); ++n) {
    if (!strncmp(name, vectors[n], strlen(vectors[n]))) return strncmp(name, "avx10", 5) != 0;
  }
  return false;
}

// Whether a file of words has this one, underscores left out.
static bool has_word(FILE* file, const char* word) {
  bool same = true;
  size_t at = 0, length = strlen(word);
  for (int c = getc(file); c != EOF; c = getc(file)) {
    if (c == ' ' || c == '\t' || c == '\n') {
      if (same && at == length) return true;
      same = true;
      at = 0;
    } else if (c != '_') {
      same = same && at < length && word[at] == c;
      ++at;
    }
  }
  return same && at == length;
}

bool machine_has(const char* feature) {
  if (*feature != '+' || !decides(feature + 1)) return true;
  const char* name = feature + 1;
  for (size_t n = 0; n < sizeof(linux_names) / sizeof(*linux_names); ++n) {
    if (!strcmp(name, linux_names[n][0])) name = linux_names[n][1];
  }
  FILE* file = fopen("/proc/cpuinfo", "r");
  if (!file) return false;
  bool found = has_word(file, name);
  fclose(file);
  return found;
}
