//! One plot as SVG: lines over logarithmic axes, with a bar from quartile to quartile at each point.

use anyhow::Context as _;
use plotters::prelude::*;
use plotters::style::RGBColor;

use crate::record::octets;

/// A plot without points has no axes.
pub struct Plot {
    /// What it shows.
    pub title: &'static str,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis: what, and its unit.
    pub y: &'static str,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its colour: an index into [`COLOURS`].
    pub colour: usize,
    /// From left to right.
    pub points: Vec<Point>,
}

/// A point of a line.
pub struct Point {
    /// Its place on the horizontal axis, positive.
    pub x: f64,
    /// Lower quartile, median, upper quartile: positive.
    pub y: [f64; 3],
}

/// A horizontal axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Octets of a message.
    Size,
    /// A percentile P as 1 / (1 - P).
    Percentile,
    /// A number of queue pairs.
    QueuePairs,
}

impl Axis {
    fn name(self) -> &'static str {
        match self {
            Self::Size => "message",
            Self::Percentile => "percentile, from the median on the left",
            Self::QueuePairs => "queue pairs",
        }
    }

    /// Factor from one label to the next.
    fn base(self) -> f64 {
        if self == Self::Size { 4.0 } else { 10.0 }
    }

    fn label(self, x: f64) -> String {
        match self {
            Self::Size => octets(x.round() as u64),
            Self::Percentile => format!("p{}", (1e8 * (1.0 - 1.0 / x)).round() / 1e6),
            Self::QueuePairs => format!("{x:.0}"),
        }
    }
}

/// Colours of lines, with those that a dark page has in their place. Readers who see few colours can tell them apart.
pub const COLOURS: [(RGBColor, &str); 10] = [
    (RGBColor(0x00, 0x72, 0xB2), "#4DA6E0"),
    (RGBColor(0xD5, 0x5E, 0x00), "#F08438"),
    (RGBColor(0x00, 0x9E, 0x73), "#2FC79B"),
    (RGBColor(0xCC, 0x79, 0xA7), "#E09CC4"),
    (RGBColor(0xE6, 0x9F, 0x00), "#F0B93A"),
    (RGBColor(0x56, 0xB4, 0xE9), "#86CDF5"),
    (RGBColor(0x8C, 0x56, 0x4B), "#C49A8C"),
    (RGBColor(0x6A, 0x3D, 0x9A), "#B39DDB"),
    (RGBColor(0x7F, 0x7F, 0x7F), "#B0B0B0"),
    (RGBColor(0x66, 0xA6, 0x1E), "#9CD65A"),
];
/// Text and axes. A style sheet gives it, and [`GRID`], the colour of the page.
pub const INK: RGBColor = RGBColor(0x20, 0x20, 0x21);
/// Lines behind the plot.
pub const GRID: RGBColor = RGBColor(0xDD, 0xDD, 0xDE);

const SIZE: (u32, u32) = (720, 400);

/// A colour as SVG has it.
pub fn hexadecimal(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The SVG.
///
/// # Errors
/// It has no points, or one that is not positive.
pub fn svg(plot: &Plot) -> anyhow::Result<String> {
    let points = || plot.series.iter().flat_map(|series| &series.points);
    let (left, right) =
        range(points().map(|point| point.x)).context("a plot without points, or with a negative one")?;
    let (low, high) =
        range(points().flat_map(|point| point.y)).context("a plot without points, or with a negative one")?;
    // The first and the last label of the vertical axis are powers of ten.
    let power = |value: f64, round: fn(f64) -> f64| 10_f64.powf(round(value.log10()));
    let (mut low, mut high) = (power(low, f64::floor), power(high, f64::ceil));
    if low >= high {
        (low, high) = (low / 10.0, high * 10.0);
    }
    // Rounded, they may lie beyond the last label.
    let (low, high) = (low * 0.999, high * 1.001);
    let font = ("sans-serif", 15).into_font().color(&INK);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(72)
            .build_cartesian_2d((left * 0.8..right * 1.25).log_scale().base(plot.x.base()), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(plot.x.name())
            .y_desc(plot.y)
            .x_label_formatter(&|x| plot.x.label(*x))
            .y_label_formatter(&|y| plain(*y))
            .axis_style(INK)
            .label_style(font.clone())
            .axis_desc_style(font)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for series in &plot.series {
            let colour = COLOURS[series.colour % COLOURS.len()].0;
            let line = series.points.iter().map(|point| (point.x, point.y[1]));
            chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(2)))?;
            chart.draw_series(line.map(|place| Circle::new(place, 3, colour.filled())))?;
            let bars = series.points.iter().map(|point| vec![(point.x, point.y[0]), (point.x, point.y[2])]);
            chart.draw_series(bars.map(|bar| PathElement::new(bar, colour.stroke_width(1))))?;
        }
        area.present()?;
    }
    // For who does not see it.
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{}\" ", plot.title), 1))
}

/// Smallest and largest; none of an empty list, or if a value has no logarithm.
fn range(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let low = values.clone().min_by(f64::total_cmp)?;
    let high = values.max_by(f64::total_cmp)?;
    (low > 0.0 && high.is_finite()).then_some((low, high))
}

/// A power of ten without exponent.
fn plain(value: f64) -> String {
    if value < 1.0 { format!("{value:.3}").trim_end_matches('0').to_owned() } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(x: Axis, points: &[(f64, f64)]) -> Plot {
        let points = points.iter().map(|&(x, y)| Point { x, y: [y * 0.9, y, y * 1.1] }).collect();
        Plot { title: "a < b", x, y: "µs", series: vec![Series { name: "a".to_owned(), colour: 0, points }] }
    }

    #[test]
    fn a_larger_value_is_drawn_higher() {
        let heights = |values: &[(f64, f64)]| -> Vec<i32> {
            let svg = svg(&plot(Axis::Size, values)).expect("a plot");
            let place = |circle: &str| circle.split_once("cy=\"")?.1.split_once('"')?.0.parse().ok();
            svg.split("<circle ").skip(1).map(|circle| place(circle).expect("a place")).collect()
        };
        let heights = heights(&[(64.0, 10.0), (4096.0, 100.0), (65_536.0, 1000.0)]);
        assert_eq!(heights.len(), 3);
        // Logarithmic: equal factors are equal distances.
        assert!((heights[0] - heights[1] - (heights[1] - heights[2])).abs() <= 1, "{heights:?}");
        assert!(heights[0] > heights[1], "{heights:?}");
    }

    #[test]
    fn axes_are_labelled_in_their_units() {
        let size = svg(&plot(Axis::Size, &[(64.0, 10.0), (65_536.0, 100.0)])).expect("a plot");
        for label in ["64 B", "4 KiB", "64 KiB", "\n10\n", "\n100\n"] {
            assert!(size.contains(label), "{label:?} is missing from {size}");
        }
        let percentile = svg(&plot(Axis::Percentile, &[(2.0, 10.0), (1000.0, 100.0)])).expect("a plot");
        for label in ["\np90\n", "\np99\n", "\np99.9\n"] {
            assert!(percentile.contains(label), "{label:?} is missing from {percentile}");
        }
    }

    #[test]
    fn what_has_no_logarithm_is_refused() {
        assert!(svg(&plot(Axis::Size, &[])).is_err());
        assert!(svg(&plot(Axis::Size, &[(64.0, 0.0)])).is_err());
        assert!(svg(&plot(Axis::Size, &[(64.0, f64::NAN)])).is_err());
    }
}
