// The file that holds a job's token for other processes of the same user: mode 0600, named by the job's id, in a folder
// that only this user can look into. The job's script makes it and takes it away (host/membership/reception.h); its guard
// does the latter if the script cannot. The token of hosts is in a file of the user's, into whose folder others must not
// write.
#pragma once

#include <string>

#include "monarch/base/result.h"
#include "monarch/wire/hello.h"

namespace monarch {

// $XDG_RUNTIME_DIR/monarch, if that is set to a folder of this user's, else /tmp/monarch-<user id>. Reads the
// environment.
std::string runtime_folder();

// Where the token of this user's hosts lies (host/hostd.h): $MONARCH_TOKEN_FILE, or hosts.token in the runtime folder.
std::string hosts_token_file();
// Makes the folder if need be, for this user alone. kUnsupported, with what to do: it is somebody else's, or open to
// others.
Status make_private_folder(const std::string& folder);

// Writes the token to `path`, whose folder is made if need be. Twice is fine. kUnsupported, with what to do: the folder
// or the file is somebody else's, or open to others. kUnavailable: the system refuses.
Status write_token_file(const std::string& path, const JobToken& token);

// Refuses a file that somebody else could have written or read, or into whose folder others can write; kUnsupported, with
// what to do. kClosed: there is no such file.
Result<JobToken> read_token_file(const std::string& path);

// The token of that file, which is made, with a new one, if there is none: whoever comes first makes it, and all that come
// at the same time get the same.
Result<JobToken> read_or_make_token_file(const std::string& path);

// Removes the file, and its folder if nothing else is in it; nothing if the folder is none of ours.
void remove_token_file(const std::string& path);

}  // namespace monarch
