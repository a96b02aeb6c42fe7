/* A module of a few lines, written against no header: it takes a name that the module under test would like to have.
 * tests/compat.rs compiles it and loads it first. */
#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct String String;

static int (*reply_with_simple_string)(Ctx *, const char *);

static int answer(Ctx *ctx, String **argv, int argc) {
    (void)argv;
    (void)argc;
    return reply_with_simple_string(ctx, "MINE");
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    /* A context begins with the function that finds the others by name. */
    int (*get_api)(const char *, void *) = *(int (**)(const char *, void *))ctx;
    void (*set_attributes)(Ctx *, const char *, int, int);
    int (*create_command)(Ctx *, const char *, int (*)(Ctx *, String **, int), const char *, int, int, int);
    (void)argv;
    (void)argc;
    if (get_api("RedisModule_SetModuleAttribs", &set_attributes) || get_api("RedisModule_CreateCommand", &create_command) ||
        get_api("RedisModule_ReplyWithSimpleString", &reply_with_simple_string))
        return 1;
    set_attributes(ctx, "taken", 1, 1);
    return create_command(ctx, "cl.throttle", answer, "readonly", 1, 1, 1);
}
