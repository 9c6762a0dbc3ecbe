#include "json.h"

#include <string.h>

static json_t skip_space(const char* at) {
  while (at && *at && strchr(" \t\r\n", *at)) ++at;
  return at && *at ? at : NULL;
}

// The end of the string that begins at `at`, behind its closing quote.
static const char* skip_string(const char* at) {
  for (++at; *at && *at != '"'; ++at) {
    if (*at == '\\' && !*++at) return NULL;
  }
  return *at ? at + 1 : NULL;
}

// The end of any value; brackets are counted, so that depth costs no stack.
static const char* skip_value(json_t value) {
  size_t depth = 0;
  const char* at = value;
  do {
    if (!(at = skip_space(at))) return NULL;
    if (*at == '"') {
      if (!(at = skip_string(at))) return NULL;
    } else if (strchr("[{", *at)) {
      ++depth;
      ++at;
    } else if (strchr("]}", *at)) {
      if (!depth--) return NULL;
      ++at;
    } else if (strchr(",:", *at)) {
      if (!depth) return NULL;
      ++at;
    } else {
      at += strcspn(at, ",:]}[{\" \t\r\n");
    }
  } while (depth);
  return at;
}

json_t json_parse(const char* text) { return skip_space(text); }

json_t json_first(json_t container) {
  if (!container || !strchr("[{", *container)) return NULL;
  json_t item = skip_space(container + 1);
  return item && !strchr("]}", *item) ? item : NULL;
}

json_t json_value(json_t key) {
  if (!key || *key != '"') return NULL;
  json_t colon = skip_space(skip_string(key));
  return colon && *colon == ':' ? skip_space(colon + 1) : NULL;
}

json_t json_next(json_t item) {
  json_t after = skip_space(skip_value(item));
  if (after && *after == ':') after = skip_space(skip_value(skip_space(after + 1)));
  return after && *after == ',' ? skip_space(after + 1) : NULL;
}

json_t json_get(json_t object, const char* name) {
  char key[64];
  if (!object || *object != '{') return NULL;
  for (json_t item = json_first(object); item; item = json_next(item)) {
    if (json_string(item, key, sizeof(key)) && !strcmp(key, name)) return json_value(item);
  }
  return NULL;
}

size_t json_count(json_t container) {
  size_t count = 0;
  for (json_t item = json_first(container); item; item = json_next(item)) ++count;
  return count;
}

int64_t json_whole(json_t value) {
  if (!value || *value < '0' || *value > '9') return -1;
  int64_t number = 0;
  for (; *value >= '0' && *value <= '9'; ++value) {
    if (number > (INT64_MAX - 9) / 10) return -1;
    number = number * 10 + (*value - '0');
  }
  return strchr(".eE", *value) && *value ? -1 : number;
}

// The four hexadecimal digits at `at`; -1 where there are none.
static int32_t hex4(const char* at) {
  int32_t unit = 0;
  for (int n = 0; n < 4; ++n) {
    const char* digits = "0123456789abcdef0123456789ABCDEF";
    const char* digit = at[n] ? strchr(digits, at[n]) : NULL;
    if (!digit) return -1;
    unit = unit << 4 | (int32_t)((digit - digits) & 15);
  }
  return unit;
}

static size_t put_utf8(uint32_t code, char bytes[4]) {
  if (code < 0x80) return bytes[0] = (char)code, 1;
  size_t count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t n = count; --n; code >>= 6) bytes[n] = (char)(0x80 | (code & 0x3F));
  bytes[0] = (char)(0xF00 >> count | code);
  return count;
}

bool json_string(json_t value, char* text, size_t capacity) {
  if (!value || *value != '"') return false;
  size_t length = 0;
  for (const char* at = value + 1; *at && *at != '"'; ++at) {
    char bytes[4] = {*at};
    size_t count = 1;
    if (*at == '\\') {
      const char* escapes = "\"\\/bfnrt";
      const char* escape = *++at ? strchr(escapes, *at) : NULL;
      if (escape) {
        bytes[0] = "\"\\/\b\f\n\r\t"[escape - escapes];
      } else {
        int32_t code = *at == 'u' ? hex4(at + 1) : -1;
        if (code <= 0) return false;
        at += 4;
        if (code >> 10 == 0x36) {  // the first half of a pair, which stands for a character past U+FFFF
          int32_t second = at[1] == '\\' && at[2] == 'u' ? hex4(at + 3) : -1;
          if (second >> 10 != 0x37) return false;
          code = 0x10000 + ((code & 0x3FF) << 10 | (second & 0x3FF));
          at += 6;
        }
        count = put_utf8((uint32_t)code, bytes);
      }
    }
    if (length + count >= capacity) return false;
    memcpy(text + length, bytes, count);
    length += count;
  }
  text[length] = 0;
  return true;
}
