//! Sizes as typed.

/// Reads `4096`, `64k`, `512Mi`, `64mb`, `1.5GiB` or `1T`: all units are powers of 1024, as in docker and systemd.
pub fn bytes(text: &str) -> Result<u64, String> {
    const HINT: &str =
        "write a number of bytes, or one with a unit, such as 64k, 512Mi, 1.5g or 1GiB; 1k is 1024";
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let shift = shift(unit.trim_start()).ok_or(HINT)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    // With at most 9 decimals no product below overflows.
    if whole.is_empty() || part.is_empty() || part.len() > 9 {
        return Err(HINT.to_owned());
    }
    let whole: u128 = whole.parse().map_err(|_| HINT.to_owned())?;
    let decimals = 10_u128.pow(u32::try_from(part.len()).unwrap_or_default());
    let part: u128 = part.parse().map_err(|_| HINT.to_owned())?;
    let all = whole.checked_mul(1 << shift);
    let all = all.and_then(|bytes| bytes.checked_add((part << shift) / decimals));
    all.and_then(|bytes| u64::try_from(bytes).ok())
        .ok_or_else(|| "it is too large".to_owned())
}

/// Formats bytes in at most five characters.
pub(crate) fn short_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    let (mut whole, mut tenths, mut unit) = (bytes, 0, "");
    for next in UNITS {
        if whole < 1024 {
            break;
        }
        tenths = whole % 1024 * 10 / 1024;
        (whole, unit) = (whole / 1024, next);
    }
    if whole < 10 {
        format!("{whole}.{tenths}{unit}")
    } else {
        format!("{whole}{unit}")
    }
}

fn shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    let letter = unit.strip_suffix('b').unwrap_or(&unit);
    let letter = match letter.strip_suffix('i') {
        Some("") => return None,
        Some(letter) => letter,
        None => letter,
    };
    match letter {
        "" => Some(0),
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        "p" => Some(50),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn human_readable_sizes_are_parsed() {
        for (text, size) in [
            ("4096", 4096),
            ("4096b", 4096),
            ("64k", 64 << 10),
            ("512M", 512 << 20),
            ("512Mi", 512 << 20),
            ("64mb", 64 << 20),
            ("1g", 1 << 30),
            ("1GiB", 1 << 30),
            ("1 GB", 1 << 30),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
            ("0", 0),
        ] {
            assert_eq!(bytes(text), Ok(size), "{text:?}");
        }
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in [
            "",
            "M",
            "-1",
            "1KM",
            "1MM",
            "1i",
            ".5g",
            "1.g",
            "1.2.3g",
            "1x",
            "99999999T",
            "1e3",
        ] {
            assert!(bytes(text).is_err(), "{text:?} was read as a size");
        }
    }
}
