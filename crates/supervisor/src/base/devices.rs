//! Block devices of io limits. The keeper gets the devices alone.

use super::{
    cause,
    look::{LOOK_MAX, LOOKS, Late, look, unanswered},
};
use kennel_lifecycle::{IoLimit, StartFailure, StartStage};
use kennel_linux::block_device;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};

/// Puts the numbers of its device in the place of each path.
pub(crate) async fn named(limits: Vec<IoLimit>) -> Result<Vec<IoLimit>, StartFailure> {
    named_by(limits, block_device::of, &LOOKS, LOOK_MAX).await
}

async fn named_by(
    limits: Vec<IoLimit>,
    device: impl Fn(&Path) -> io::Result<String> + Clone + Send + 'static,
    looks: &'static Semaphore,
    most: Duration,
) -> Result<Vec<IoLimit>, StartFailure> {
    let end = Instant::now() + most;
    let mut named = Vec::new();
    for limit in limits {
        let (path, device) = (PathBuf::from(&limit.path), device.clone());
        let found = look(looks, end, move || device(&path)).await;
        let failed = |errno, path| StartFailure {
            stage: StartStage::Limits,
            errno,
            path: Some(path),
        };
        let path = match found.map(io::Result::flatten) {
            Ok(Ok(path)) => path,
            Ok(Err(error)) => return Err(failed(cause::errno(&error), limit.path)),
            Err(Late) => return Err(failed(None, unanswered(limit.path, most))),
        };
        named.push(IoLimit { path, ..limit });
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;
    use std::sync::{Arc, Mutex, mpsc};

    fn limit(path: &str) -> IoLimit {
        IoLimit {
            path: path.to_owned(),
            reads: Some(1),
            ..IoLimit::default()
        }
    }

    // promise: RW-123a
    #[tokio::test]
    async fn path_without_a_device_has_no_io_limit() {
        let none = named(vec![limit("/proc")]).await;
        let none = none.expect_err("it is on no device");
        assert_eq!(none.stage, StartStage::Limits);
        assert_eq!(none.errno, Some(Errno::ENODEV as i32));
        assert_eq!(none.path.as_deref(), Some("/proc"));
    }

    // promise: RW-123a
    #[tokio::test]
    async fn hanging_device_lookup_refuses_start_in_time() {
        static TWO: Semaphore = Semaphore::const_new(2);
        let mut held = Vec::new();
        // The third lookup finds no free permit.
        for path in ["/one", "/two", "/three"] {
            let (answer, answers) = mpsc::channel::<()>();
            held.push(answer);
            let answers = Arc::new(Mutex::new(answers));
            let hang = move |_: &Path| {
                let _ = answers.lock().expect("nothing panics with it").recv();
                Ok("8:0".to_owned())
            };
            let late = named_by(vec![limit(path)], hang, &TWO, Duration::from_millis(20)).await;
            let late = late.expect_err("nothing answers");
            assert_eq!(late.path, Some(format!("{path} (no answer in 0 s)")));
        }
        assert_eq!(TWO.available_permits(), 0);
        drop(held);
        let device = |_: &Path| Ok("8:0".to_owned());
        let named = named_by(vec![limit("/one")], device, &TWO, LOOK_MAX).await;
        assert_eq!(named.expect("there is room again"), [limit("8:0")]);
    }
}
