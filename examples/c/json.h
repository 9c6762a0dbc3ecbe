// A reader of JSON that keeps no tree: a value is a pointer to where it begins in the text, NULL where there is none.

#ifndef JSON_H_
#define JSON_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef const char* json_t;

// The value of a text that ends with a zero byte.
json_t json_parse(const char* text);

// The first item of an array or object, and the one after an item. In an object an item is its key.
json_t json_first(json_t container);
json_t json_next(json_t item);

// The value of a key that json_first or json_next gave.
json_t json_value(json_t key);

// The value of a name in an object.
json_t json_get(json_t object, const char* name);

// The number of items of an array or object.
size_t json_count(json_t container);

// A whole number that isn't negative; -1 for anything else.
int64_t json_whole(json_t value);

// Copies a string as UTF-8 with a zero byte at its end. False: it is no string, or too long.
bool json_string(json_t value, char* text, size_t capacity);

#endif  // JSON_H_
