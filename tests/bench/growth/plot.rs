//! A plot as SVG: costs beside the number of runs, both in powers of ten, each cost as a multiple of its smallest size.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 300.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Distance between two lines of the legend.
const LINE: f64 = 20.0;
/// Colours that differ for colour-blind readers too (Okabe and Ito).
const COLOURS: [&str; 8] = [
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#0072b2", "#d55e00", "#999999",
];

/// One cost.
pub(super) struct Series<'a> {
    pub(super) name: &'a str,
    /// Number of runs, and the cost there.
    pub(super) points: Vec<(usize, f64)>,
}

/// Draws all costs; a size of 0 stands at 1.
pub(super) fn draw(what: &str, all: &[Series<'_>]) -> String {
    let multiples: Vec<Vec<(f64, f64)>> = all.iter().map(multiples).collect();
    let points = || multiples.iter().flatten();
    let x_max = points().map(|(x, _)| *x).fold(1.0, f64::max);
    let y_max = points().map(|(_, y)| *y).fold(1.0, f64::max).ceil();
    let x_of = |x: f64| LEFT + x / x_max * (WIDTH - LEFT - RIGHT);
    let y_of = |y: f64| HEIGHT - BOTTOM - y / y_max * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\">Cost as a multiple of that at the smallest number of {what}</text>\n"
    );
    for power in 0..=whole(y_max) {
        let (y, label) = (y_of(f64::from(power)), 10_u64.pow(power));
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y:.0}H{:.0}\" stroke=\"#dddddd\"/><text x=\"{:.0}\" y=\"{:.0}\" \
             text-anchor=\"end\">{label}x</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
        );
    }
    for power in 0..=whole(x_max.floor()) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            x_of(f64::from(power)),
            HEIGHT - BOTTOM + 20.0,
            10_u64.pow(power),
        );
    }
    let mut legend = TOP;
    for ((series, points), colour) in all.iter().zip(&multiples).zip(COLOURS.iter().cycle()) {
        let line: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <text x=\"{:.0}\" y=\"{legend:.0}\" fill=\"{colour}\">{}</text>",
            line.join(" "),
            WIDTH - RIGHT + 16.0,
            series.name,
        );
        legend += LINE;
    }
    svg.push_str("</svg>\n");
    svg
}

/// Logarithms of the sizes, and of the costs as multiples of the first; a cost below the first stands at it.
#[expect(clippy::cast_precision_loss, reason = "a number of runs is small")]
fn multiples(series: &Series<'_>) -> Vec<(f64, f64)> {
    let first = series.points.first().map_or(f64::NAN, |(_, cost)| *cost);
    let point = |(size, cost): &(usize, f64)| {
        let size = (*size).max(1) as f64;
        (size.log10(), (cost / first).log10().max(0.0))
    };
    series.points.iter().map(point).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a power of ten that can be drawn"
)]
fn whole(power: f64) -> u32 {
    power.clamp(0.0, 12.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenfold_cost_is_plotted_higher() {
        let series = Series {
            name: "it",
            points: vec![(10, 5.0), (100, 50.0)],
        };
        let svg = draw("runs", &[series]);
        // SVG y grows downward: the tenfold cost has y=40.
        assert!(svg.contains("points=\"240.0,310.0 420.0,40.0\""), "{svg}");
    }
}
