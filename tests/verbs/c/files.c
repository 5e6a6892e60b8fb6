/*
 * What a program sees of the device's files by each function of the C library that takes a path and only reads, and
 * that all other paths answer as the kernel does.
 *
 *   cc -o files files.c
 *   uwarp-run --roce ./files TEST
 *   TEST: shown|others
 *
 * Exit status 0 if everything was as it has to be; otherwise a line on standard error says what was not.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "check.h"

#define NODE "/dev/infiniband/uverbs0"
#define DEVICE "/sys/class/infiniband/uwarp0"
#define TYPE DEVICE "/node_type"

/* What old programs call in place of stat and its like; new ones cannot link it. */
typedef int old_stat(int version, const char *path, struct stat *found);

#ifdef __x86_64__
#define OLD_VERSION 1
#else
#define OLD_VERSION 0
#endif

static int is_node(int answer, struct stat found)
{
	return answer == 0 && S_ISCHR(found.st_mode) && found.st_rdev == makedev(1, 3) && (found.st_mode & 0666) == 0666;
}

static void node(void)
{
	old_stat *old[] = { dlsym(RTLD_DEFAULT, "__xstat"), dlsym(RTLD_DEFAULT, "__lxstat") };
	char room[PATH_MAX], *allocated;
	struct statx more;
	struct stat found;
	int file;

	check(is_node(stat(NODE, &found), found) && is_node(lstat(NODE, &found), found));
	check(is_node(fstatat(AT_FDCWD, NODE, &found, AT_SYMLINK_NOFOLLOW), found));
	for (int kind = 0; kind < 2; kind++)
		check(!old[kind] || is_node(old[kind](OLD_VERSION, NODE, &found), found));
	check(statx(AT_FDCWD, NODE, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &more) == 0 && S_ISCHR(more.stx_mode));
	check(access(NODE, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, NODE, R_OK | W_OK, AT_EACCESS) == 0);
	check(euidaccess(NODE, R_OK | W_OK) == 0 && access(NODE, X_OK) == -1 && errno == EACCES);
	check((file = open(NODE, O_RDWR | O_CLOEXEC)) >= 0 && is_node(fstat(file, &found), found));
	check(write(file, "x", 1) == 1 && read(file, room, 1) == 0 && close(file) == 0);
	check((file = openat(AT_FDCWD, "/dev//infiniband/./uverbs0", O_RDWR)) >= 0 && close(file) == 0);
	check(readlink(NODE, room, sizeof(room)) == -1 && errno == EINVAL);
	check(realpath(NODE, room) == room && strcmp(room, NODE) == 0);
	check((allocated = realpath(NODE, NULL)) && strcmp(allocated, NODE) == 0);
	free(allocated);
}

static int is_uwarp(const struct dirent *entry)
{
	return strcmp(entry->d_name, "uwarp0") == 0;
}

static void folders(void)
{
	struct dirent **list, *entry;
	struct stat found;
	int count = 0;
	DIR *folder;

	check((folder = opendir("/sys/class/infiniband")) != NULL);
	while ((entry = readdir(folder)))
		count += is_uwarp(entry);
	check(count == 1);
	/* Below an open folder, too. */
	check(fstatat(dirfd(folder), "uwarp0", &found, 0) == 0 && S_ISDIR(found.st_mode));
	check(closedir(folder) == 0);
	check(scandir("/sys/class/infiniband", &list, is_uwarp, alphasort) == 1);
	free(list[0]);
	free(list);
	check((folder = opendir("/dev/infiniband/")) != NULL);
	check(is_node(fstatat(dirfd(folder), "uverbs0", &found, 0), found));
	check(closedir(folder) == 0);
	check((count = open("/sys/class/infiniband_verbs", O_RDONLY | O_DIRECTORY)) >= 0 && close(count) == 0);
}

static void texts(void)
{
	char room[PATH_MAX], *allocated;
	ssize_t length;
	FILE *file;
	int number;

	check((file = fopen(TYPE, "r")) && fgets(room, sizeof(room), file) && strcmp(room, "1: CA\n") == 0);
	check(fclose(file) == 0);
	check((number = open(TYPE, O_RDONLY)) >= 0 && read(number, room, sizeof(room)) == 6 && close(number) == 0);
	check((length = readlink("/sys/class/infiniband_verbs/uverbs0/device", room, sizeof(room))) > 0);
	room[length] = 0;
	check(strcmp(room, "../../infiniband/uwarp0/device") == 0);
	check(realpath("/sys/class/infiniband_verbs/uverbs0/device", room) && strcmp(room, DEVICE "/device") == 0);
	check((allocated = canonicalize_file_name(DEVICE "/ports/../ports/1")) != NULL);
	check(strcmp(allocated, DEVICE "/ports/1") == 0);
	free(allocated);
	/* Mooncake looks where a card would be. */
	check(realpath(DEVICE "/../..", room) && strcmp(room, "/sys/class") == 0);
	/* What there is not, or is only read. */
	check(open(DEVICE "/none", O_RDONLY) == -1 && errno == ENOENT && !fopen(DEVICE "/none", "r") && errno == ENOENT);
	check(!opendir(DEVICE "/none") && errno == ENOENT && !opendir(TYPE) && errno == ENOTDIR);
	check(open(DEVICE "/new", O_WRONLY | O_CREAT, 0644) == -1 && !fopen(TYPE, "w"));
}

static long opened(long file)
{
	if (file >= 0)
		check(close(file) == 0);
	return file;
}

/* The kernel's own answer, and the C library's. */
static void answers_as_the_kernel_does(const char *path)
{
	char room[2][PATH_MAX];
	struct stat found[2];
	long answer, kernels;

	memset(room, 0, sizeof(room));
	memset(found, 0, sizeof(found));
#define same(call, system_call)                                                                                       \
	do {                                                                                                          \
		int number;                                                                                           \
		errno = 0;                                                                                            \
		kernels = (system_call);                                                                              \
		number = errno;                                                                                       \
		errno = 0;                                                                                            \
		answer = (call);                                                                                      \
		check(answer == kernels && errno == number);                                                          \
	} while (0)
	same(stat(path, &found[0]), syscall(SYS_newfstatat, AT_FDCWD, path, &found[1], 0));
	check(memcmp(&found[0], &found[1], sizeof(found[0])) == 0);
	same(lstat(path, &found[0]), syscall(SYS_newfstatat, AT_FDCWD, path, &found[1], AT_SYMLINK_NOFOLLOW));
	same(access(path, R_OK | W_OK), syscall(SYS_faccessat, AT_FDCWD, path, R_OK | W_OK));
	same(readlink(path, room[0], PATH_MAX), syscall(SYS_readlinkat, AT_FDCWD, path, room[1], PATH_MAX));
	check(memcmp(room[0], room[1], PATH_MAX) == 0);
	/* Closed in between, so the number is the same. */
	same(opened(open(path, O_RDWR)), opened(syscall(SYS_openat, AT_FDCWD, path, O_RDWR)));
#undef same
}

static void others(void)
{
	static char long_path[2 * PATH_MAX] = "/sys/class/infiniband/";
	const char *paths[] = { "/", "/dev/null", "/sys/class", "/sys/class/net/lo", "/sys/class/infiniband_mad", "/none",
				"/none/x", "/etc/shadow", "/etc/passwd/x", "/proc/self/exe", "", "files", "./none", NULL,
				"sys/class/infiniband", "/dev/infiniband_none", long_path };
	struct stat found[2];
	int file;

	memset(long_path + strlen(long_path), 'x', sizeof(long_path) - strlen(long_path) - 1);
	for (size_t index = 0; index < sizeof(paths) / sizeof(paths[0]); index++)
		answers_as_the_kernel_does(paths[index]);
	check(!opendir("/none") && errno == ENOENT && !realpath("/none/x", NULL) && errno == ENOENT);
	/* The mode of a new file comes through. */
	umask(0);
	check((file = open("made", O_WRONLY | O_CREAT | O_EXCL, 0640)) >= 0 && fstat(file, &found[0]) == 0);
	check((found[0].st_mode & 07777) == 0640 && stat("made", &found[1]) == 0 && found[0].st_ino == found[1].st_ino);
	check(close(file) == 0 && unlink("made") == 0);
}

int main(int count, char **words)
{
	check(count == 2);
	if (strcmp(words[1], "others") == 0)
		return others(), 0;
	node();
	folders();
	texts();
	return 0;
}
