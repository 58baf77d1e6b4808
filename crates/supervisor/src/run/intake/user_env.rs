//! Variables of a command's user, by passwd(5). Users that only a directory service knows have none.

use std::fs;

/// Returns HOME, USER, LOGNAME and SHELL of a user, as far as /etc/passwd has them.
pub(super) fn of(uid: u32) -> Vec<(&'static str, String)> {
    variables(&fs::read("/etc/passwd").unwrap_or_default(), uid)
}

fn variables(passwd: &[u8], uid: u32) -> Vec<(&'static str, String)> {
    let lines = passwd.split(|byte| *byte == b'\n');
    let lines = lines.filter_map(|line| std::str::from_utf8(line).ok());
    let entry = lines.map(|line| line.split(':').collect::<Vec<_>>());
    let mut entry = entry.filter(|fields| fields.get(2).is_some_and(|id| id.parse() == Ok(uid)));
    let entry = entry.next().unwrap_or_default();
    let [name, _, _, _, _, home, shell] = entry[..] else {
        return Vec::new();
    };
    let shell = if shell.is_empty() { "/bin/sh" } else { shell };
    let all = [
        ("HOME", home),
        ("USER", name),
        ("LOGNAME", name),
        ("SHELL", shell),
    ];
    let all = all.into_iter().filter(|(_, value)| !value.is_empty());
    all.map(|(name, value)| (name, value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: RW-163
    #[test]
    fn passwd_entry_is_found_by_uid() {
        let passwd =
            b"+nis\n\xff:x:7:7::/:/bin/sh\nu:x:1000:100:U,,,:/home/u:\nn:x:8:8::::\nd:x:9:9:::/x\n";
        let values = |uid| {
            let found = variables(passwd, uid).into_iter();
            found
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            values(1000),
            ["HOME=/home/u", "USER=u", "LOGNAME=u", "SHELL=/bin/sh"]
        );
        assert_eq!(values(9), ["USER=d", "LOGNAME=d", "SHELL=/x"]);
        for none in [7, 8, 100] {
            assert_eq!(values(none), [""; 0]);
        }
    }
}
