//! `kennel screen`: the screen of a terminal, as text.

use super::link::Link;
use crate::{args::RunRef, failure::Failure};
use kennel_proto::pb;

pub(crate) async fn screen(link: &Link, args: RunRef) -> Result<(), Failure> {
    let run_id = link.run_id(&args.run).await?;
    let request = pb::ReadScreenRequest { run_id };
    let screen = link.call(request).await?.screen.unwrap_or_default();
    link.print(&screen, || text(&screen))
}

/// Returns its lines, without empty ones at the end. Colours and the like are left out.
fn text(screen: &pb::Screen) -> String {
    let mut text = String::new();
    let last = screen.lines.iter().rposition(|line| !line.spans.is_empty());
    for line in screen.lines.iter().take(last.map_or(0, |last| last + 1)) {
        let mut plain: String = line.spans.iter().map(|span| &*span.text).collect();
        plain.truncate(plain.trim_end().len());
        text.push_str(&plain);
        text.push('\n');
    }
    text
}
