//! Line plots of measurements with logarithmic axes, as SVG.
//!
//! ```text
//!   title
//!   1000 │           ●──  one series
//!    100 │     ●────╯
//!     10 │ ■────■────■──  another
//!        └─────────────
//!          1   10  100
//! ```
//!
//! # Example
//!
//! ```
//! use efa_plot::{Corner, Plot, Series};
//!
//! let lists = Series::new("lists", [(1.0, 10.0), (100.0, 900.0)]);
//! let tables = Series::new("tables", [(1.0, 20.0), (100.0, 20.0)]);
//! let plot = Plot {
//!     title: "A look-up".into(),
//!     x: "entries".into(),
//!     y: "instructions".into(),
//!     legend: Corner::UpperLeft,
//!     series: vec![lists, tables],
//! };
//! assert!(plot.to_svg()?.contains("tables"));
//! # Ok::<(), efa_plot::PlotError>(())
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;

use plotters::coord::combinators::IntoLogRange;
use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 560);
/// Colours that are distinct on white, the first also to the colour-blind (Okabe and Ito).
const COLOURS: [RGBColor; 9] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(130, 130, 130),
    RGBColor(120, 80, 40),
];

/// A plot. Both axes are logarithmic.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Title above the plot.
    pub title: String,
    /// Label of the x axis, with its unit.
    pub x: String,
    /// Label of the y axis, with its unit.
    pub y: String,
    /// Corner of the legend, which no line should cross.
    pub legend: Corner,
    /// The lines.
    pub series: Vec<Series>,
}

/// A corner of the plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corner {
    /// For lines that rise.
    UpperLeft,
    /// For lines that fall.
    LowerLeft,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// A line through these points, in this order. Points with a coordinate of zero or below are dropped, as a
    /// logarithmic axis cannot show them.
    pub fn new(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let points = points.into_iter().filter(|&(x, y)| x > 0.0 && y > 0.0).collect();
        Self { name: name.into(), points }
    }
}

/// A plot cannot be drawn.
#[derive(Debug)]
pub struct PlotError(String);

impl fmt::Display for PlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot draw the plot: {}", self.0)
    }
}

impl Error for PlotError {}

impl Plot {
    /// The plot as SVG.
    ///
    /// # Errors
    ///
    /// There is no point to draw.
    pub fn to_svg(&self) -> Result<String, PlotError> {
        let mut svg = String::new();
        self.draw(&mut svg).map_err(|error| PlotError(error.to_string()))?;
        Ok(svg)
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn Error + '_>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (x, y) = (range(points().map(|p| p.0)), range(points().map(|p| p.1)));
        let (Some(x), Some(y)) = (x, y) else { return Err("it has no points".into()) };
        let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .x_label_formatter(&|value| shown(*value))
            .y_label_formatter(&|value| shown(*value))
            .light_line_style(WHITE)
            .draw()?;
        for (series, color) in self.series.iter().zip(COLOURS.iter().cycle().copied()) {
            let dot = move |at, size, style| Circle::new(at, size, style);
            let line = LineSeries::new(series.points.iter().copied(), color.stroke_width(2));
            chart.draw_series(line)?.label(&series.name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2))
            });
            let dots =
                PointSeries::of_element(series.points.iter().copied(), 3, color.filled(), &dot);
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(match self.legend {
                Corner::UpperLeft => SeriesLabelPosition::UpperLeft,
                Corner::LowerLeft => SeriesLabelPosition::LowerLeft,
            })
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

/// From the smallest to the largest value, with a margin.
fn range(values: impl Iterator<Item = f64>) -> Option<std::ops::Range<f64>> {
    let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
        Some(ends.map_or((value, value), |(least, most)| (least.min(value), most.max(value))))
    });
    ends.map(|(least, most)| least / 1.5..most * 1.5)
}

/// A number with a comma between thousands.
fn shown(value: f64) -> String {
    if value < 10.0 {
        return value.to_string();
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(series: Vec<Series>) -> Plot {
        let (title, x, y) = ("Cost".into(), "depth".into(), "ns".into());
        Plot { title, x, y, legend: Corner::LowerLeft, series }
    }

    #[test]
    fn plot_has_a_line_a_name_and_dots_for_each_series() {
        let points = [(1.0, 10.0), (16.0, 20.0), (65_536.0, 1_000_000.0)];
        let svg = plot(vec![Series::new("one", points), Series::new("two", [(1.0, 5.0)])]);
        let svg = svg.to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["Cost", "depth", "ns", "one", "two", "100,000"] {
            assert!(svg.contains(&format!("\n{text}\n")), "no text {text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn plot_without_points_is_an_error() {
        let error = plot(vec![Series::new("none", [(0.0, 1.0)])]).to_svg().unwrap_err();
        assert_eq!(error.to_string(), "cannot draw the plot: it has no points");
    }
}
