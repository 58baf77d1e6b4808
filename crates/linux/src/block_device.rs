//! The block device below a path.

use nix::sys::stat::{SFlag, major, minor, stat};
use std::{fs, io, path::Path};

/// Where the kernel lists block devices by their numbers.
const DEVICES: &str = "/sys/dev/block";

/// Returns the numbers of the whole disk that holds a file or directory, or that a device file names, as `8:0`. The
/// error is ENODEV where no single block device holds it: tmpfs, overlay, network, and file systems of several disks.
/// Blocks, for ever where a file system does not answer.
pub fn of(path: &Path) -> io::Result<String> {
    let found = stat(path)?;
    let is_device = SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == SFlag::S_IFBLK;
    let device = if is_device {
        found.st_rdev
    } else {
        found.st_dev
    };
    whole(
        Path::new(DEVICES),
        &format!("{}:{}", major(device), minor(device)),
    )
}

/// Returns the numbers of the disk of a partition, or those of the device.
fn whole(devices: &Path, numbers: &str) -> io::Result<String> {
    let none = || io::Error::from_raw_os_error(libc::ENODEV);
    let device = devices.join(numbers);
    // Device numbers of file systems without a block device have no entry here.
    let real = fs::canonicalize(&device).map_err(|_| none())?;
    if !real.join("partition").exists() {
        return Ok(numbers.to_owned());
    }
    let disk = real.parent().ok_or_else(none)?;
    Ok(fs::read_to_string(disk.join("dev"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    // promise: RW-123
    #[test]
    fn partition_is_limited_by_its_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let (disks, devices) = (dir.path().join("disk"), dir.path().join("block"));
        fs::create_dir_all(disks.join("part1")).expect("directories");
        fs::create_dir(&devices).expect("a directory");
        fs::write(disks.join("dev"), "259:0\n").expect("a file");
        fs::write(disks.join("part1/partition"), "1\n").expect("a file");
        fs::write(disks.join("part1/dev"), "259:1\n").expect("a file");
        symlink(&disks, devices.join("259:0")).expect("a link");
        symlink(disks.join("part1"), devices.join("259:1")).expect("a link");
        for numbers in ["259:0", "259:1"] {
            assert_eq!(whole(&devices, numbers).expect("it is there"), "259:0");
        }
        let none = whole(&devices, "0:33").expect_err("it is no device");
        assert_eq!(none.raw_os_error(), Some(libc::ENODEV));
    }

    // promise: RW-123a
    #[test]
    fn path_without_a_device_is_an_error() {
        let none = of(Path::new("/proc/self")).expect_err("it is on no device");
        assert_eq!(none.raw_os_error(), Some(libc::ENODEV));
        let none = of(Path::new("/no/such/path")).expect_err("it is not there");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}
