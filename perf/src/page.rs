//! A run as one page of HTML: tables, and plots as SVG within it. The page asks for nothing from outside.

use std::fmt::Write as _;

use crate::plot::{Axis, COLOURS, GRID, INK, Plot, Point, Series, hexadecimal, svg};
use crate::record::{Figure, Figures, Machine, Quantity, Run};
use crate::table::{number, ratios};

/// The page.
///
/// # Errors
/// A figure that has to be plotted is not positive.
pub fn page(run: &Run) -> anyhow::Result<String> {
    let machine = run.machine();
    let mut body = String::new();
    for line in format!("{}\n{}", run.about, run.what_counts()).lines() {
        writeln!(body, "<p>{}</p>", escape(line))?;
    }
    body += "<p>Latencies are full round trips, or from a post to its completion. A bar at a point reaches from quartile to \
             quartile of the samples that are kept; what has none is not drawn.</p>\n";
    let rows = ratios(run);
    if !rows.is_empty() {
        body += "<h2>Ratios</h2>\n";
        let rows: Vec<_> = rows.iter().map(|row| row.cells().to_vec()).collect();
        body += &table(&["device", "ratio", "of the medians", "round by round", "quartiles", "rounds"], 2, &rows);
    }
    for (device, figures) in &run.devices {
        writeln!(body, "<h2>{}</h2>", escape(device))?;
        for plot in plots(figures, machine) {
            writeln!(body, "<figure>\n<figcaption>{}</figcaption>\n{}", escape(plot.title), svg(&plot)?)?;
            body += "<ul>\n";
            for series in &plot.series {
                let (name, colour) = (escape(&series.name), series.colour % COLOURS.len());
                writeln!(body, "<li><span class=\"c{colour}\"></span>{name}</li>")?;
            }
            body += "</ul>\n</figure>\n";
        }
        body += &figures_table(figures, machine);
    }
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>uwarp-bench</title>\n<style>\n{}</style>\n</head>\n\
         <body>\n<h1>uwarp beside its limit and its peers</h1>\n{body}</body>\n</html>\n",
        style()
    ))
}

/// The names of what ran, in the order in which it was measured.
fn names(figures: &Figures) -> Vec<&str> {
    let mut names = Vec::new();
    for figure in &figures.0 {
        if !names.contains(&figure.key.what.as_str()) {
            names.push(&figure.key.what);
        }
    }
    names
}

/// Gives each line the colour that it has in other plots, or the next one if another line of this plot has it.
fn distinguish(series: &mut [Series]) {
    let mut free: Vec<usize> = (0..COLOURS.len()).collect();
    for line in series {
        let wanted = line.colour % COLOURS.len();
        let at = free.iter().position(|colour| *colour >= wanted).unwrap_or_default();
        line.colour = if free.is_empty() { wanted } else { free.remove(at) };
    }
}

/// The plots for which the run has figures.
fn plots(figures: &Figures, machine: Machine) -> Vec<Plot> {
    let names = names(figures);
    let lines = |x: fn(&Figure) -> Option<f64>, scale: f64, least: usize| {
        let line = |(colour, what): (usize, &&str)| {
            let mut points: Vec<Point> = figures
                .0
                .iter()
                .filter(|figure| figure.key.what == *what)
                .filter_map(|figure| {
                    let y = figure.kept(machine).quartiles()?.map(|value| value * scale);
                    Some(Point { x: x(figure)?, y })
                })
                .collect();
            points.sort_by(|one, other| one.x.total_cmp(&other.x));
            (points.len() >= least).then(|| Series { name: (*what).to_owned(), colour, points })
        };
        names.iter().enumerate().filter_map(line).collect::<Vec<_>>()
    };
    let mut of_size = lines(|figure| by_size(figure, Quantity::LatencyP50), 1e-3, 3);
    // A program that prints no median.
    for mut series in lines(|figure| by_size(figure, Quantity::LatencyMean), 1e-3, 3) {
        if of_size.iter().all(|other| other.name != series.name) {
            series.name += " (mean)";
            of_size.push(series);
        }
    }
    let plots = [
        Plot {
            title: "Latency of 64 octets by percentile",
            x: Axis::Percentile,
            y: "µs",
            series: lines(percentile, 1e-3, 2),
        },
        Plot { title: "Latency by size, median", x: Axis::Size, y: "µs", series: of_size },
        Plot {
            title: "Bandwidth by size",
            x: Axis::Size,
            y: "Gbit/s",
            series: lines(|figure| by_size(figure, Quantity::Bandwidth), 1.0, 3),
        },
        Plot {
            title: "Cost of a Write of 64 octets by number of queue pairs",
            x: Axis::QueuePairs,
            y: "ns",
            series: lines(
                |figure| (figure.key.quantity == Quantity::Cost).then_some(f64::from(figure.key.queue_pairs)),
                1.0,
                2,
            ),
        },
    ];
    let mut plots: Vec<Plot> = plots.into_iter().filter(|plot| !plot.series.is_empty()).collect();
    plots.iter_mut().for_each(|plot| distinguish(&mut plot.series));
    plots
}

fn by_size(figure: &Figure, quantity: Quantity) -> Option<f64> {
    (figure.key.quantity == quantity && figure.key.queue_pairs == 1 && figure.key.size > 0)
        .then_some(figure.key.size as f64)
}

/// Of 100 or 1000 messages one takes longer.
fn percentile(figure: &Figure) -> Option<f64> {
    let x = match figure.key.quantity {
        Quantity::LatencyP50 => 2.0,
        Quantity::LatencyP99 => 100.0,
        Quantity::LatencyP999 => 1000.0,
        _ => return None,
    };
    (figure.key.size == 64 && figure.key.queue_pairs == 1).then_some(x)
}

fn figures_table(figures: &Figures, machine: Machine) -> String {
    let rows: Vec<Vec<String>> = figures
        .0
        .iter()
        .map(|figure| {
            let kept = figure.kept(machine);
            let [low, median, high] =
                kept.quartiles().map_or([const { String::new() }; 3], |values| values.map(number));
            let counts = [kept.count(), figure.samples.len() - kept.count(), figure.failed as usize];
            [figure.key.to_string(), median, low, high]
                .into_iter()
                .chain(counts.map(|count| count.to_string()))
                .collect()
        })
        .collect();
    table(&["figure", "median", "lower quartile", "upper quartile", "kept", "dropped", "failed"], 1, &rows)
}

/// A table whose columns from `numbers` on are numbers.
fn table(header: &[&str], numbers: usize, rows: &[Vec<String>]) -> String {
    let line = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
        let cells: String = cells
            .enumerate()
            .map(|(column, cell)| {
                let class = if column >= numbers { " class=\"number\"" } else { "" };
                format!("<{tag}{class}>{}</{tag}>", escape(cell))
            })
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let head = line("th", &mut header.iter().copied());
    let body: String = rows.iter().map(|row| line("td", &mut row.iter().map(String::as_str))).collect();
    format!("<div class=\"wide\"><table>\n<thead>\n{head}</thead>\n<tbody>\n{body}</tbody>\n</table></div>\n")
}

/// Text as HTML has it.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The plots' own colours are those of a light page; a dark one replaces them.
fn style() -> String {
    let mut style = "\
:root { color-scheme: light dark; --page: #fff; --ink: #202021; --grid: #ddddde; --soft: #f5f5f6; }
body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; background: var(--page); color: var(--ink); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
figure { margin: 1.5rem 0; } figcaption { font-weight: bold; } svg { max-width: 100%; height: auto; }
ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0; padding: 0 0 0 4.5rem; }
li span { display: inline-block; width: 1.1rem; height: .25rem; margin-right: .4rem; vertical-align: middle; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--grid); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tbody tr:nth-child(even) { background: var(--soft); }
"
    .to_owned();
    for (name, colour) in [("ink", INK), ("grid", GRID)] {
        let colour = hexadecimal(colour);
        style += &format!(
            "svg [stroke=\"{colour}\"] {{ stroke: var(--{name}); }} svg [fill=\"{colour}\"] {{ fill: var(--{name}); }}\n"
        );
    }
    let mut dark = "  :root { --page: #16181d; --ink: #e4e4e6; --grid: #3a3d45; --soft: #1e2127; }\n".to_owned();
    for (index, (colour, replacement)) in COLOURS.into_iter().enumerate() {
        let colour = hexadecimal(colour);
        style += &format!(".c{index} {{ background: {colour}; }}\n");
        dark += &format!(
            "  .c{index} {{ background: {replacement}; }} svg [stroke=\"{colour}\"] {{ stroke: {replacement}; }} \
             svg [fill=\"{colour}\"] {{ fill: {replacement}; }}\n"
        );
    }
    style + "@media (prefers-color-scheme: dark) {\n" + &dark + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short run of all parts, recorded on a machine with other load.
    fn recorded() -> Run {
        serde_json::from_str(include_str!("../tests/data/run.json")).expect("a recorded run")
    }

    /// The values of an attribute.
    fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
        page.split(&format!(" {attribute}=\"")).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn every_tag_that_is_opened_is_closed() {
        let page = page(&recorded()).expect("a page");
        let mut open: Vec<&str> = Vec::new();
        for tag in page.split('<').skip(1).map(|rest| rest.split_once('>').expect("a tag ends").0) {
            let name =
                tag.trim_start_matches('/').split(|c: char| c.is_whitespace() || c == '/').next().expect("a name");
            match tag {
                _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "</{name}> closes another tag"),
                _ if tag.ends_with('/') || ["!DOCTYPE", "meta"].contains(&name) => {}
                _ => open.push(name),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    #[test]
    fn the_page_asks_for_nothing_from_outside() {
        let page = page(&recorded()).expect("a page");
        for word in ["src=", "href=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(word), "the page contains {word}");
        }
        // The name of a language, which no browser fetches.
        let names = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!names.contains("://"), "the page contains an address");
    }

    #[test]
    fn every_kind_of_plot_is_there_with_every_program() {
        let run = recorded();
        let page = page(&run).expect("a page");
        let titles = [
            "Latency of 64 octets by percentile",
            "Latency by size, median",
            "Bandwidth by size",
            "Cost of a Write of 64 octets by number of queue pairs",
        ];
        for title in titles {
            let plots = values(&page, "aria-label").into_iter().filter(|label| *label == title).count();
            assert_eq!(plots, run.devices.len(), "{title}");
        }
        for name in ["Write", "raw device", "kernel TCP, spinning", "libfabric tcp (mean)", "UCX tag"] {
            assert!(page.contains(&format!("</span>{name}</li>")), "no legend has {name}");
        }
    }

    #[test]
    fn the_lines_of_a_plot_differ_in_colour() {
        let run = recorded();
        for figures in run.devices.values() {
            for plot in plots(figures, run.machine()) {
                let colours: std::collections::BTreeSet<usize> = plot.series.iter().map(|line| line.colour).collect();
                assert_eq!(colours.len(), plot.series.len(), "{}", plot.title);
            }
        }
    }

    #[test]
    fn the_page_says_what_was_dropped_and_where_it_was_measured() {
        let run = recorded();
        let page = page(&run).expect("a page");
        for text in [&run.about.processor, &run.about.kernel, &run.about.rounds, &run.what_counts()] {
            assert!(page.contains(&escape(text)), "{text}");
        }
        let figures = run.devices.values().map(|figures| figures.0.len()).sum::<usize>();
        let tables = ["</thead>", "<tr><td>"].map(|tag| page.matches(tag).count());
        assert_eq!(tables, [1 + run.devices.len(), figures + ratios(&run).len()], "a figure or a ratio has no row");
    }

    #[test]
    fn table_and_plot_change_with_the_record() {
        let mut run = recorded();
        let before = page(&run).expect("a page");
        let figure = run
            .devices
            .values_mut()
            .flat_map(|figures| &mut figures.0)
            .find(|figure| figure.key.what == "Write" && by_size(figure, Quantity::Bandwidth).is_some())
            .expect("a bandwidth of Writes");
        let name = figure.key.to_string();
        figure.samples.iter_mut().for_each(|sample| sample.value *= 3.0);
        let after = page(&run).expect("a page");
        let row = |page: &str| page.lines().find(|line| line.contains(&format!("<td>{name}</td>"))).map(str::to_owned);
        assert!(row(&before).is_some());
        assert!(row(&before) != row(&after), "the table has the same row as before");
        let plot = |page: &str| {
            let start = page.find("aria-label=\"Bandwidth by size\"").expect("the plot");
            page[start..].split("</svg>").next().map(str::to_owned)
        };
        assert!(plot(&before) != plot(&after), "the plot is the same as before");
    }

    #[test]
    fn a_dark_page_replaces_every_colour_that_a_plot_uses() {
        let page = page(&recorded()).expect("a page");
        let dark = page.split("prefers-color-scheme: dark").nth(1).expect("a style for dark pages");
        let variable = [INK, GRID].map(hexadecimal);
        let plots: String = page.split("<svg ").skip(1).filter_map(|rest| rest.split("</svg>").next()).collect();
        let colours = values(&plots, "stroke").into_iter().chain(values(&plots, "fill"));
        let used: std::collections::BTreeSet<&str> = colours.filter(|colour| *colour != "none").collect();
        assert!(used.len() > 4, "{used:?}");
        for colour in used {
            assert!(
                dark.contains(colour) || variable.iter().any(|known| known == colour),
                "{colour} stays on dark pages"
            );
        }
    }
}
