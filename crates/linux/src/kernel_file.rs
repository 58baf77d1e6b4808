//! Files that the kernel writes as they are read: those of /proc and of control groups. They do not report their size.
//! The standard library would ask for it, and begin with 32 bytes; where a whole tree is read before it is killed, that
//! is most of the time.

use std::{
    fs::File,
    io::{self, Read},
};

/// Buffer for the first read: enough for most.
pub(crate) const FIRST_READ_BYTES: usize = 1024;

/// Reads a whole file of the kernel that is a list of records.
pub(crate) fn read_list(file: File) -> io::Result<Vec<u8>> {
    read(file, false)
}

/// Reads a file that is one record, as that of a process is (`single_open` in `fs/seq_file.c`), and each control file
/// that is no list (`seq_show` in `fs/kernfs/file.c`): the kernel returns all of it at once, so a read that leaves room
/// is the last.
pub(crate) fn read_record(file: File) -> io::Result<Vec<u8>> {
    read(file, true)
}

fn read(mut file: File, is_one_record: bool) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; FIRST_READ_BYTES];
    let mut len = 0;
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(read) => {
                len += read;
                if read == 0 || (is_one_record && len < bytes.len()) {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if len == bytes.len() {
            bytes.resize(2 * len, 0);
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}
